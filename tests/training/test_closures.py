"""Single instructions of a function show what it may change outside its local variables."""

from elasticdl.training.closures import changes_in

NUMBER = 0


def test_assigned_variables_and_attributes_are_found():
    n = m = 0

    def change(box):
        global NUMBER  # noqa: PLW0603 - the subject of the test
        nonlocal n
        local = 0

        def inner():
            nonlocal local, m
            local = m = 1

        NUMBER = n = inner()
        box.size += local
        del box.lid

    found = changes_in(change)

    assert found.variables == {"NUMBER", "n", "m"}
    assert found.attributes == {"size", "lid"}


def test_methods_that_change_a_container_are_found_by_its_name():
    seen, other = [], []

    def change(box):
        seen.append(len(other))
        box.rates.pop()
        other.copy()

    found = changes_in(change)

    assert [found.mutates(name) for name in ("seen", "rates", "other", "box")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_items_of_local_variables_are_no_change():
    table = {}

    def assigns(epoch):
        table[epoch] = 1

    def deletes(epoch):
        del table[epoch]

    def assigns_local(epoch):
        rates = [1.0]
        rates[epoch] = 2.0
        return rates

    assert [changes_in(each).assigns_items for each in (assigns, deletes, assigns_local)] == [
        True, True, False,
    ]  # fmt: skip
