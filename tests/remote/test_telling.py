"""What is said of decisions, and how often."""

from stoker.decide.offload import Offload
from stoker.remote.telling import Telling

KEPT = Offload(None, 0.0, 65, 1, "65 samples/s instead of 65: what other hosts prepare would gain too little")
SENT = Offload("all", 0.3, 90, 1, "90 samples/s instead of 65; then the loop would be the limit")


def test_what_was_said_is_taken_back_once_when_it_does_not_hold_any_more() -> None:
    telling = Telling()
    assert telling.words(KEPT) == f"offload=: everything is prepared on this host: {KEPT.reason}"
    assert telling.words(KEPT) is None
    assert telling.words(SENT) == f"offload=: other hosts prepare a part from now on: {SENT.reason}"
    assert [telling.words(decision) for decision in (SENT, KEPT, SENT)] == [None, None, None]


def test_nothing_is_said_of_work_that_is_sent_away_from_the_beginning() -> None:
    telling = Telling()
    assert telling.words(SENT) is None
    assert telling.words(KEPT) is not None
