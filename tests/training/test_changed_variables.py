"""What a function changes that outlives its call is read from its code."""

import pytest

from elasticdl.training.changed_variables import ChangedVariables


def changed_by(function, **options):
    code = ChangedVariables(**options)
    code.follow(function, "f")
    return [each.name for each in code.changed]


class Each:
    total = 0

    def __init__(self):
        self.n, self.items, self.by_name = 0, [], {"a": 1}

    def assigns(self, x):
        self.n = 1 if x else 2

    def adds(self, x):
        self.n += 1 if x else 2

    def adds_in_a_loop(self, x):
        for each in range(3):
            try:
                self.n += each
            except ValueError:
                self.n -= 1

    def of_an_alias(self, x):
        itself = self
        itself.n = x

    def of_type(self, x):
        type(self).total += 1

    def of_class(self, x):
        self.__class__.total += 1

    def appends(self, x):
        self.items.append(x)

    def extends(self, x):
        items = self.items
        items += [x]

    def slices(self, x):
        self.items[1:2] = [x]

    def in_a_comprehension(self, x):
        return [self.items.append(each) for each in range(3)]

    def sets_an_item(self, x):
        self.by_name["a"] += 1

    def deletes_an_item(self, x):
        del self.by_name["a"]

    def calls(self, x):
        return self.helped(x) + 1

    def helped(self, x):
        self.n = x
        return x

    @property
    def counted(self):
        self.n += 1
        return self.n

    def reads_a_property(self, x):
        return self.counted

    def changes_nothing(self, x):
        found = [self.n, *self.items]
        found.append(x)
        found[0] = 2
        names = {}
        names["a"] = self.items
        names.update(b=next(iter(self.items), None))
        return [self.n + each for each in found]


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("assigns", ["Each.n"]), ("adds", ["Each.n"]), ("adds_in_a_loop", ["Each.n"]),
        ("of_an_alias", ["Each.n"]), ("of_type", ["Each.total"]), ("of_class", ["Each.total"]),
        ("appends", ["Each.items"]), ("extends", ["Each.items"]), ("slices", ["Each.items"]),
        ("in_a_comprehension", ["Each.items"]), ("sets_an_item", ["Each.by_name"]),
        ("deletes_an_item", ["Each.by_name"]), ("calls", ["Each.n"]),
        ("reads_a_property", ["Each.n"]), ("changes_nothing", []),
    ],
)  # fmt: skip
def test_changes_of_a_method(method, names):
    assert changed_by(getattr(Each(), method)) == names


def test_changes_of_variables_of_the_enclosing_function():
    n, numbers, found = 0, iter([1, 2]), []

    def counts():
        nonlocal n
        n += 1

    def advances():
        return next(numbers, None)

    def in_a_function_within():
        add = lambda: found.append(1)  # noqa: E731 - the subject of the test
        return add()

    def in_its_own_variables():
        m = 0

        def count():
            nonlocal m
            m += 1

        count()
        return m + n

    functions = counts, advances, in_a_function_within, in_its_own_variables
    assert [changed_by(each) for each in functions] == [["n"], ["numbers"], ["found"], []]


def test_what_a_checkpoint_contains_is_not_changed():
    each = Each()

    assert changed_by(each.appends, is_stored=lambda value, name: name == "items") == []
    assert changed_by(each.adds, is_left_out=lambda value: value is each) == []


def test_objects_that_cannot_be_called_and_functions_of_libraries_change_nothing():
    assert changed_by(3) == changed_by(print) == changed_by(pytest.fixture) == []
