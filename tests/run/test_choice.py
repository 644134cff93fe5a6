"""Which loader a script trains with."""

import math

from stoker.run.choice import BACKWARD_BATCHES, OTHER_BATCHES, SHUFFLED_BATCHES, SHUFFLED_S, VALIDATING_S, Choice


def use(
    choice: Choice, loader: int, *, shuffles: bool = False, length: float = 10, batches: int = 0, learns: bool = True
) -> None:
    choice.used(loader, shuffles=shuffles, length=length)
    for _ in range(batches):
        choice.given(loader, 0.0, learns=learns)


def test_the_one_before_the_first_update() -> None:
    choice = Choice()
    use(choice, 0, shuffles=True, length=1000, batches=2, learns=False)  # a look at some predictions first
    use(choice, 1, length=5, batches=1)
    assert choice.chosen is None
    choice.updated()
    assert choice.chosen == 1


def test_one_that_shuffles_if_no_update_comes() -> None:
    choice = Choice()
    use(choice, 0, shuffles=True, batches=SHUFFLED_BATCHES - 1)
    assert choice.chosen is None
    choice.given(0, 0.0, learns=True)
    assert choice.chosen == 0


def test_one_before_backward_passes_if_the_script_updates_by_itself() -> None:
    choice = Choice()
    use(choice, 0, length=1000, batches=3)
    use(choice, 1, batches=1)
    choice.went_back()
    use(choice, 1, batches=BACKWARD_BATCHES - 1)
    assert choice.chosen == 1


def test_slow_batches_are_not_waited_for() -> None:
    choice = Choice()
    use(choice, 0, shuffles=True, batches=1)
    choice.given(0, SHUFFLED_S, learns=True)
    assert choice.chosen == 0


def test_ranks_go_by_batches_alone() -> None:
    choice = Choice(by_time=False)
    use(choice, 0, shuffles=True, batches=1)
    choice.given(0, 10 * SHUFFLED_S, learns=True)
    assert choice.chosen is None


def test_a_validation_loader_that_shuffles_is_not_taken() -> None:
    choice = Choice()
    use(choice, 0, shuffles=True, batches=10 * SHUFFLED_BATCHES, learns=False)
    assert choice.chosen is None


def test_the_only_one_if_none_shuffles() -> None:
    choice = Choice()
    use(choice, 0, batches=OTHER_BATCHES)
    assert choice.chosen == 0


def test_the_largest_if_none_shuffles() -> None:
    choice = Choice()
    use(choice, 0, length=100, batches=2)
    use(choice, 1, length=5, batches=2 * OTHER_BATCHES)
    assert choice.chosen is None
    choice.used(0, shuffles=False, length=100)
    for _ in range(OTHER_BATCHES):
        choice.given(0, 0.0, learns=True)
    assert choice.chosen == 0


def test_a_script_that_never_learns_is_analysed_all_the_same() -> None:
    choice = Choice()
    use(choice, 0, length=100, batches=3, learns=False)
    choice.given(0, VALIDATING_S, learns=False)
    assert choice.chosen == 0


def test_the_one_that_was_asked_for() -> None:
    choice = Choice(2)
    use(choice, 0, shuffles=True, length=math.inf, batches=100)
    choice.updated()
    assert choice.chosen is None
    use(choice, 1)
    assert choice.chosen == 1


def test_what_would_be_taken_of_a_script_that_has_ended() -> None:
    choice = Choice()
    assert choice.best_guess() is None
    use(choice, 0, length=100, batches=1, learns=False)
    use(choice, 1, shuffles=True, length=10, batches=1)
    use(choice, 2, length=50, batches=1)
    assert choice.best_guess() == 1
