"""Who is who."""

from elasticdl.engines.federated.flower.membership import Membership


def test_a_registered_node_is_known_without_a_request():
    membership = Membership(registered={7: "north", 8: "south"}).with_online([8])

    assert membership.nodes == {"south": 8}
    assert not membership.unnamed_nodes


def test_a_node_with_an_unregistered_key_is_ignored():
    membership = Membership(registered={7: "north"}).with_online([7, 9]).with_name(9, "south")

    assert membership.nodes == {"north": 7}


def test_a_registered_party_cannot_take_the_name_of_another():
    membership = Membership(registered={7: "north", 8: "south"}).with_online([7, 8])

    assert membership.with_name(8, "north").nodes == {"north": 7, "south": 8}


def test_a_new_node_is_unnamed_until_it_reports_its_name():
    membership = Membership().with_online([1, 2])
    assert membership.unnamed_nodes == {1, 2}

    membership = membership.with_name(1, "north")

    assert membership.unnamed_nodes == {2}
    assert membership.nodes == {"north": 1}


def test_a_second_node_with_the_same_name_is_refused_and_named():
    membership = Membership().with_online([1, 2]).with_name(2, "north").with_name(1, "north")

    assert membership.nodes == {"north": 2}
    assert membership.refused == {1: "north"}


def test_a_refused_node_is_accepted_when_the_other_is_gone():
    both = Membership().with_online([1, 2]).with_name(2, "north").with_name(1, "north")

    membership = both.with_online([1])

    assert membership.nodes == {"north": 1}
    assert not membership.refused


def test_a_party_that_returns_with_a_new_node_keeps_its_name():
    gone = Membership().with_online([1]).with_name(1, "north").with_online([])
    assert gone.nodes == {}

    assert gone.with_online([5]).with_name(5, "north").nodes == {"north": 5}


def test_a_node_that_returns_reports_its_name_again():
    membership = (
        Membership().with_online([1]).with_name(1, "north").with_online([]).with_online([1])
    )

    assert membership.unnamed_nodes == {1}


def test_a_node_cannot_change_its_name():
    membership = Membership().with_online([1]).with_name(1, "north").with_name(1, "south")

    assert membership.nodes == {"north": 1}


def test_names_from_offline_nodes_are_ignored():
    assert Membership().with_online([]).with_name(1, "north").nodes == {}
