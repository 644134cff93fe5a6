"""An analysis inside the script: every loader is watched, and the training loader's place is taken once it is known.

Until then every loader gives its own batches. From then on the training loop gets those of `Measurement`, in the middle of
its epoch, and nothing that it can see changes: an epoch has as many batches as before, and ends. Other loaders go on
giving their own. When all is measured the script is stopped; its exit handlers do not run.

What was found is written for the command that started the script after every step, and when the script ends by itself.
"""

import atexit
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from stoker.errors import StokerError
from stoker.feed.hooks import HOOKS
from stoker.feed.progress import index_sampler
from stoker.host import ranks
from stoker.order import length_of
from stoker.run.agenda import Agenda
from stoker.run.choice import Choice
from stoker.run.measured import Measured
from stoker.run.measuring import Measurement
from stoker.run.progress import USUAL_PHASES, tell
from stoker.run.replay import KeptBatch
from stoker.run.subject import close_iterator, shuffles

_WITHOUT_LOADER = 50
_WITHOUT_LOADER_S = 15.0
"""A script that makes so many backward passes in so long a time, and has iterated no loader, does not train with one."""
_COMPANION = 3
_SAVED_EVERY_S = 5.0


class Analysis:
    """Sees every batch that the script gets of its loaders, and replaces those of the training loader."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._owner = os.getpid()
        self._place = settings["measured"]
        self._found = Measured.load(self._place) or Measured(cached_part=settings["cached"])
        if not os.path.exists(self._place):
            self._found.save(self._place)  # torch was imported: that much is known
        self._loaders: list[Any] = []
        self._choice = Choice(settings["loader"] or self._found.loader or None, by_time=ranks.world() == 1)
        self._measurement: Measurement | None = None
        self._training: list[Any] = []
        """The training loader, and those that the script made later for the same."""
        self._began = 0.0
        self._passes, self._first_pass = 0, 0.0
        self._last: Watched | None = None
        self._judged: set[int] = set()
        self._used: dict[int, int] = {}
        """Batches of other loaders since the last one of the training loader."""
        self._together: dict[int, int] = {}
        """How often in succession a loader gave one batch beside one of the training loader."""
        self._companions: set[int] = set()
        self._saved_at = 0.0
        HOOKS.wrap_iterators(self._watch)
        register_optimizer_step_post_hook(self._on_update)
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._go_back
        atexit.register(self._ended_early)

    # ---- events

    def _watch(self, loader: Any, iterate: Callable[[], Any]) -> Any:
        if os.getpid() != self._owner:
            return iterate()
        is_first, number = not self._loaders, self._number(loader)
        if is_first:
            self._began, self._found.began = time.perf_counter(), time.time()
            self._save()  # the command counts the time from here on
            tell(self._settings["progress"], "which loader trains?", USUAL_PHASES * self._settings["phase_s"])
        self._choice.used(number, shuffles=shuffles(loader), length=length_of(loader) or math.inf)
        if self._measurement is None and self._choice.chosen == number:
            self._take_over(loader)
        learns = _learns() or (self._measurement is not None and not self._choice.learns(self._found.loader - 1))
        if self._measurement is not None and not (self._is_training(loader) and learns):
            if learns and any(_is_remade(loader, known) for known in self._training):
                self._training.append(loader)
            elif number not in self._companions:
                self._measurement.other_begins()
        return Watched(self, loader, None if self._is_training(loader) and learns else iterate())

    def _number(self, loader: Any) -> int:
        for number, known in enumerate(self._loaders):
            if known is loader:
                return number
        self._loaders.append(loader)
        self._found.loaders = max(self._found.loaders, len(self._loaders))
        return len(self._loaders) - 1

    def next_of(self, watched: "Watched") -> Any:
        """The batch that the script gets of a loader."""
        if os.getpid() != self._owner:
            return next(watched.own)
        learns, number = _learns(), self._number(watched.loader)
        if self._is_training(watched.loader) and (watched.own is None or learns):
            return self._measured_batch(watched)
        if self._measurement is not None:
            self._used[number] = self._used.get(number, 0) + 1
            if number not in self._companions:
                self._measurement.clock.other()
        batch = next(watched.own)
        self._last, watched.last = watched, batch
        self._choice.given(number, time.perf_counter(), learns=learns)
        self._look_at_choice()
        return batch

    def _find_companions(self) -> None:
        """Find loaders that give one batch beside every batch of the training loader: they belong to the loop."""
        for number, count in self._used.items():
            self._together[number] = self._together.get(number, 0) + 1 if count == 1 else 0
            if self._together[number] >= _COMPANION:
                self._companions.add(number)
        for number in self._together.keys() - self._used.keys():
            self._together[number] = 0
        self._used.clear()

    def _measured_batch(self, watched: "Watched") -> Any:
        measurement = self._measurement
        assert measurement is not None
        watched.release()
        self._find_companions()
        if time.perf_counter() - self._saved_at > _SAVED_EVERY_S:
            self._save()  # in case it is killed
        if watched.given == watched.ends_after:
            measurement.epoch_ended()
            raise StopIteration
        if watched.epoch and watched.given % watched.epoch == 0 and watched.given:
            measurement.clock.other()  # an endless iterator, whose epochs the script counts
        try:
            batch = measurement.next_batch()
        except StopIteration:
            self._found.is_complete = True
            self._stop()
        except StokerError as error:
            self._give_up(str(error))
        return batch

    def _on_update(self, *_: Any) -> None:
        if os.getpid() != self._owner:
            return
        if self._measurement is not None:
            self._measurement.clock.updated()
            self._adopt()
        else:
            self._choice.updated()
            self._look_at_choice()

    def _go_back(self, *arguments: Any, **named: Any) -> None:
        self._backward(*arguments, **named)
        if os.getpid() != self._owner or self._measurement is not None:
            return
        self._choice.went_back()
        self._passes += 1
        self._first_pass = self._first_pass or time.perf_counter()
        passed_s = time.perf_counter() - self._first_pass
        if not self._loaders and self._passes >= _WITHOUT_LOADER and passed_s >= _WITHOUT_LOADER_S:
            self._give_up("the script trains, and has iterated no DataLoader")

    # ---- the training loader

    def _look_at_choice(self) -> None:
        if self._measurement is None and self._choice.chosen is not None:
            self._take_over(self._loaders[self._choice.chosen])

    def _take_over(self, loader: Any) -> None:
        self._training.append(loader)
        self._found.loader = self._number(loader) + 1
        try:
            agenda = Agenda(
                self._found,
                iterations=self._settings["iterations"],
                phase_s=self._settings["phase_s"],
                peers=self._settings["peers"],
                offload=self._settings["offload"],
                deadline=self._began + self._settings["limit_s"],
                tell=self._tell,
                save=self._save,
            )
            self._measurement = Measurement(loader, agenda)
        except StokerError as error:
            self._give_up(str(error))

    def _is_training(self, loader: Any) -> bool:
        return any(known is loader for known in self._training)

    def _adopt(self) -> None:
        """After an update that followed another loader's batch: if its batches are of the same kind, it trains, too."""
        last, measurement = self._last, self._measurement
        self._last = None
        if last is None or measurement is None or not measurement.kept or id(last.loader) in self._judged:
            return
        self._judged.add(id(last.loader))  # all loaders are kept
        if self._is_training(last.loader) or self._number(last.loader) in self._together:
            return
        is_alike = KeptBatch(last.last).kinds == measurement.kept[0].kinds
        if is_alike and last.loader.batch_size == measurement.subject.loader.batch_size:
            self._training.append(last.loader)

    # ---- telling

    @property
    def _reports(self) -> bool:
        return self._measurement is None or self._measurement.is_first_rank

    def _tell(self, what: str, left_s: float) -> None:
        if self._reports:
            tell(self._settings["progress"], what, left_s)

    def _save(self) -> None:
        if not self._reports:
            return
        self._saved_at = time.perf_counter()
        if self._measurement is None:
            self._found.save(self._place)
        else:
            with self._measurement.counting_what_is_under_way():
                self._found.save(self._place)

    def _stop(self) -> None:
        """Write what is known, and stop the script."""
        if self._measurement is not None:
            self._measurement.subject.close()  # the process ends without finalizers
        self._save()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _give_up(self, word: str) -> None:
        self._found.word = word
        self._stop()

    def _ended_early(self) -> None:
        if os.getpid() != self._owner or not self._loaders:
            return
        guess = self._choice.best_guess()
        if guess is not None and self._measurement is None:
            self._found.loader = guess + 1  # the next start begins at once
        self._save()


class Watched:
    """What the script iterates: a loader's own batches, until an analysis replaces them. It ends where the loader would."""

    def __init__(self, analysis: Analysis, loader: Any, own: Any) -> None:
        self._analysis = analysis
        self.loader = loader
        self.own = own
        self.last: Any = None
        """The last batch of the loader itself."""
        self.given = 0
        streams = isinstance(loader.dataset, torch.utils.data.IterableDataset)
        self.ends_after = length_of(loader if streams else index_sampler(loader))
        """None of an endless sampler, whose loader may still have a length: the script counts its epochs then."""
        self.epoch = length_of(loader) if self.ends_after is None else None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self._analysis.next_of(self)
        self.given += 1
        return batch

    def __len__(self) -> int:
        return len(self.loader if self.own is None else self.own)

    def __getattr__(self, name: str) -> Any:
        if name in ("own", "loader"):
            raise AttributeError(name)
        return getattr(self.loader if self.own is None else self.own, name)

    def release(self) -> None:
        """End the loader's own iterator: its batches are not needed any more."""
        if self.own is not None:
            close_iterator(self.own)
            self.own = self.last = None


def _learns() -> bool:
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def _is_remade(loader: Any, training: Any) -> bool:
    """Whether a loader does the same as one before, which the script may have made anew for another epoch."""
    return (
        loader.dataset is training.dataset
        and length_of(loader) == length_of(training)
        and loader.batch_size == training.batch_size
        and shuffles(loader) == shuffles(training)
        and loader.num_workers == training.num_workers
    )
