"""What a keeper has: the queues of all loaders, and the readers that serve them."""

from typing import Any

from stoker.keeper.messages import Said


class House:
    """Everything but the lines."""

    look_again_s: float | None = None

    def hear(self, caller: int, pid: int, said: Said) -> None:
        """A process has said something."""

    def leave(self, caller: int) -> None:
        """A process is gone: forget its queues."""

    def govern(self) -> bool:
        """Move readers, if that is worth it. Returns whether there is news to publish."""
        return False

    def state(self) -> dict[str, Any]:
        """What others may see of it."""
        return {}

    def close(self) -> None:
        """End all readers."""
