"""By what the engine decides, and what the start of a lease costs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """By what the engine decides."""

    policy: str = "fifo"
    mechanism: str = "tune"
    round_s: float = 300.0
    switch_cost_s: float = 0.0
    """What the start of a lease costs a job, whatever it is given."""
    as_published: bool = False
    """FTF and tune as they were printed."""
    one_server: bool = False
    """Whether no job is spread over several servers; who finds no single one waits."""
    start_work_s: float = 0.0
    """What a start takes on top, of one whole core: with a part of a core it takes longer, with several as long."""
    core: float = 1.0
    """What one CPU is of a core."""

    @property
    def starts_cost(self) -> bool:
        """Whether a change of a lease costs anything."""
        return self.switch_cost_s > 0 or self.start_work_s > 0

    def start_s(self, cpus: float) -> float:
        """What the start of a lease costs that has so many CPUs."""
        return self.switch_cost_s + (self.start_work_s / min(1.0, cpus * self.core) if self.start_work_s else 0.0)
