"""What the user is told of a decision: each once, so that a split that changes often does not fill the screen."""

from stoker.decide.offload import Offload


class Telling:
    """That nothing is sent away although workers are there; and, after that, that something is."""

    def __init__(self) -> None:
        self._told: list[bool] = []

    def words(self, decision: Offload) -> str | None:
        """What is to be said of a decision that holds from now on, if anything."""
        is_sent = decision.ratio > 0
        if is_sent in self._told or (is_sent and not self._told):
            return None
        self._told.append(is_sent)
        how = "other hosts prepare a part from now on" if is_sent else "everything is prepared on this host"
        return f"offload=: {how}: {decision.reason}"
