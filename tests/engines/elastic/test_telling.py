"""What the driver writes of the workers' reports: each event once, in whatever order they come."""

from elasticdl.engines.elastic.controller import _Controller
from elasticdl.engines.elastic.reports import Point, Report
from elasticdl.events import StepCommitted


def step(number):
    return Point(number, number), StepCommitted(step=number, epoch=0, num_records=1, loss=0.0)


def report(first, last):
    point = Point(last, last)
    return Report(point, point, continues=True, events=[step(i) for i in range(first, last + 1)])


def test_an_answer_that_was_long_on_its_way_has_nothing_told_twice():
    controller = _Controller.__new__(_Controller)
    controller._known, controller._step, controller._steps, controller._seen = None, 0, [], 0

    # Two workers were asked for the same; the one that has gone further answers first.
    controller._take_events(report(1, 5))
    controller._take_events(report(1, 3))
    assert controller._known == Point(5, 5)
    controller._take_events(report(4, 6))

    assert [event.step for event in controller._steps] == [1, 2, 3, 4, 5, 6]
