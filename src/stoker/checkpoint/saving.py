"""One checkpoint at a time is copied to memory and written to disk; this module knows how far it is.

IDLE  -- begin -->  COPYING  -- all in memory -->  WRITING  -- saved | failed -->  IDLE
                       \\-- failed | torn: changed meanwhile -->  IDLE
"""

import warnings

from stoker.checkpoint.copying import Copier
from stoker.checkpoint.snapshot import Gathered
from stoker.checkpoint.writer import Writer
from stoker.errors import CheckpointError
from stoker.memory import Mapping

SAVED, TORN = "saved", "torn"
_DIED = "the process that writes checkpoints has died; it is started again"


class Saving:
    """The checkpoint under way, and the results of earlier ones. Ranks that write nothing never have one under way."""

    def __init__(self, writer: Writer | None, copier: Copier, *, overlap: bool) -> None:
        self.step: int | None = None
        """The step of the checkpoint under way."""
        self.overlap = overlap
        """Whether it is copied beside the loop."""
        self.durable: int | None = None
        """The step of the newest one on disk."""
        self.checkpoints = self.failures = 0
        self.persist_s = 0.0
        self.damaged: list[str] = []
        """Names of checkpoints that were found damaged. They are left alone."""
        self._writer, self._copier = writer, copier
        self._copy_failed: Exception | None = None
        self._told: set[str] = set()

    def begin(self, step: int, gathered: Gathered, mapping: Mapping, *, kept: bool, prune: int | None) -> None:
        """Copy the gathered state to the writer's memory, and have it written from there."""
        writer = self._writer
        assert writer is not None

        def copied(failure: Exception | None) -> None:
            self._copy_failed = failure
            if failure is None and not self._copier.torn:
                try:
                    writer.save(step, gathered.document, gathered.lengths, kept=kept, prune=prune, spared=self.damaged)
                except OSError:
                    self._copy_failed = CheckpointError(_DIED)
                except Exception as error:
                    self._copy_failed = error
            gathered.sources.clear()

        self.step = step
        self._copier.begin(gathered, mapping, copied, overlap=self.overlap)

    def hear(self, *, wait: bool = False) -> str | None:
        """Note how far the checkpoint is. Returns SAVED, TORN, or None if it has failed or is still under way."""
        if self.step is None or self._writer is None:
            return None
        if wait:
            self._copier.join()
        if self._copier.is_busy:
            return None
        if self._copier.torn or self._copy_failed is not None:
            return self._drop()
        report = self._writer.report(wait=wait)
        if report is None:
            if not self._writer.is_alive:
                self.failed(_DIED)
        elif "failed" in report:
            self.failed(report["why"])
        elif "saved" in report:
            self.durable, self.step = report["saved"], None
            self.checkpoints += 1
            self.persist_s = report["seconds"]
            self._told.discard("failed")
            return SAVED
        return None

    def _drop(self) -> str | None:
        """Drop a snapshot that failed or is not of one moment. The next one is copied while the loop waits."""
        torn, failure = self._copier.torn, self._copy_failed
        self.step, self._copier.torn, self._copy_failed = None, False, None
        if not torn:
            self.failed(str(failure))
            return None
        self.overlap = False
        self._tell(
            "torn",
            "a parameter was changed by something other than an optimizer's step() while it was being copied, so that "
            "snapshot was dropped. From now on snapshots are copied while the loop waits (overlap=False).",
        )
        return TORN

    def failed(self, why: str) -> None:
        """Warn that a checkpoint could not be written. The run goes on."""
        self.step = None
        self.failures += 1
        good = f"the one of step {self.durable} stays" if self.durable else "none is on disk yet"
        self._tell(
            "failed", f"a checkpoint could not be written: {why}. Training goes on, {good}, and the next will be tried."
        )

    def _tell(self, topic: str, words: str) -> None:
        if topic not in self._told:
            self._told.add(topic)
            warnings.warn(words, stacklevel=5)
