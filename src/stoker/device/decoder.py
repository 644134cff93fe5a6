"""Decodes batches ahead of the loop: threads of ours in the training process, each with a stream of its own on the device.

A thread decodes (`nvjpeg`), draws (`kernels`) and finishes (`tail`). What the loop gets lies in memory that was taken,
and is given back, on the loop's own stream, as if the loop had made it. A thread's own memory is one block that is used
again, and only when its stream has done all that came before: the engine does not honour streams. Threads stand still
while this process forks. Graphs that are captured meanwhile are not disturbed: the threads' calls are not looked at.
"""

import atexit
import ctypes
import functools
import io
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stoker.device import colours, tail
from stoker.device.nvjpeg import Nvjpeg, UnavailableError
from stoker.device.recipe import BICUBIC, COLUMNS, DRAWN, Recipe, steps_in
from stoker.host import forks

BUDGET_BYTES = 1 << 29
"""How many bytes of decoded pictures a thread has on the device at a time, beside the finished batches."""
THREADS = 2
"""For each device. Where the loop keeps a device busy, the engine waits for it most of the time."""
_COLUMN = {name: number for number, name in enumerate(COLUMNS)}
_CAPTURED_BY_OTHERS = 1
"""CUDA's number of the mode in which a thread does not care for what others capture."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What launches need to know of a table."""

    taps: tuple[int, int]
    """How many pixels are added for one, along rows and along columns, at most."""
    highest: int
    between_bytes: int


class DecodeJob:
    """A batch on its way to the device."""

    def __init__(self, files: torch.Tensor, table: torch.Tensor, out: torch.Tensor, ops: tail.Ops) -> None:
        self.files: Any = files
        self.table: Any = table
        self.ops = ops
        self._out = out
        self.free = torch.cuda.Event()  # type: ignore[no-untyped-call]
        """When `out` may be written."""
        self.free.record()
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self.on_host = 0
        """How many pictures had to be decoded by the processor."""

    def write(self, content: torch.Tensor) -> None:
        """On the thread's stream: make the batch's numbers of its bytes."""
        tail.finish_into(self._out, content, self.ops)

    def result(self) -> torch.Tensor:
        """The batch, for the caller's stream."""
        self.ended.wait()
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # what has failed refers to this job: a child process would meet its events as garbage, and abort
        stream = torch.cuda.current_stream(self._out.device)
        stream.wait_event(self.done)
        return self._out


def decoded_on_host(files: torch.Tensor, table: torch.Tensor, shape: Sequence[int], ops: tail.Ops) -> torch.Tensor:
    """What a job would give, by the processor."""
    from stoker.device.picture import decoded

    pictures = []
    for row in table.tolist():
        content = files[row[0] : row[0] + row[1]]
        if row[_COLUMN["is_pixels"]]:
            pixels = content.clone()
        else:
            drawn = decoded(content.numpy().tobytes(), recipe_of(row, shape), "L" if shape[0] == 1 else "RGB")
            pixels = torch.from_numpy(np.array(drawn).reshape(-1))
        pictures.append(pixels.view(shape[1], shape[2], shape[0]).permute(2, 0, 1))
    return tail.finish(torch.stack(pictures), ops, torch.contiguous_format)


class Decoder:
    """A decoder of one device, and its thread."""

    def __init__(self, device: torch.device) -> None:
        try:
            from stoker.device import kernels
        except ImportError as error:
            raise UnavailableError("Triton is not installed") from error
        self._draw = kernels.draw
        self.device = device
        with torch.cuda.device(device):
            self._nvjpeg = Nvjpeg()
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._jobs: queue.SimpleQueue[DecodeJob | None] = queue.SimpleQueue()
        self.standing_still = threading.Lock()
        """Held by the thread while it works; by a fork, so that the thread stands still."""
        self._pixels = torch.empty(0)
        self._thread: threading.Thread | None = None
        self._has_begun = False
        """Whether the thread is ready to call the device."""

    def submit(self, files: torch.Tensor, table: torch.Tensor, shape: Sequence[int], ops: tail.Ops) -> DecodeJob:
        """Decode a batch of so many colours, rows and columns. Its memory is taken on the caller's stream."""
        with torch.cuda.device(self.device):
            out = torch.empty((len(table), *shape), dtype=torch.float32, device=self.device)
            job = DecodeJob(files, table, out, ops)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="stoker-decoder", daemon=True)
            self._thread.start()
        self._jobs.put(job)
        return job

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        """Do jobs until there are no more. What fails is the jobs' error: none of them is left without an answer."""
        self._has_begun = False
        while (job := self._jobs.get()) is not None:
            with self.standing_still:
                job.error = _failure_of(self._do_on_stream, job)
                job.files = job.table = None  # so that the slot is free again
                job.ended.set()
                # The loop's stream may not have the memory before, if nobody waits for the job. A device that has failed
                # writes no more.
                _failure_of(self._stream.synchronize)
            del job

    def _begin(self) -> None:
        torch.cuda.set_device(self.device)
        mode = ctypes.c_int(_CAPTURED_BY_OTHERS)
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    def _do_on_stream(self, job: DecodeJob) -> None:
        if not self._has_begun:  # an error of the beginning, too, belongs to one job alone
            self._begin()
            self._has_begun = True
        with torch.cuda.stream(self._stream), torch.inference_mode(False), torch.no_grad():
            self._do(job)

    def _do(self, job: DecodeJob) -> None:
        table = job.table.numpy()
        out = torch.empty(job._out.shape, dtype=torch.uint8, device=self.device)
        for rows in parts_of(table):
            self._draw_part(job, table[rows], out[rows])
        steps = table[:, len(DRAWN) :]
        if steps.any():
            colours.change(out, steps[:, ::2], np.ascontiguousarray(steps[:, 1::2]).view(np.float64))
        self._stream.wait_event(job.free)
        job.write(out)
        job.done.record(self._stream)

    def _draw_part(self, job: DecodeJob, table: Any, out: torch.Tensor) -> None:
        sizes = decoded_bytes(table)
        places = np.cumsum(sizes) - sizes
        self._stream.synchronize()  # nobody reads the block any more
        if len(self._pixels) < sizes.sum():
            self._pixels = torch.empty(0)
            self._pixels = torch.empty(int(sizes.sum()), dtype=torch.uint8, device=self.device)
            self._stream.synchronize()
        is_file = table[:, _COLUMN["is_pixels"]] == 0
        where, how_long = job.files.data_ptr() + table[:, 0], table[:, 1]
        targets = self._pixels.data_ptr() + places
        files = np.flatnonzero(is_file)
        if len(files) and not self._decode(where[files], how_long[files], targets[files], table[files]):
            for number in files:
                one = slice(number, number + 1)
                if not self._decode(where[one], how_long[one], targets[one], table[one]):
                    self._decode_here(job, table[number], int(places[number]))
        for number in np.flatnonzero(~is_file):
            begin, length = int(table[number, 0]), int(table[number, 1])
            self._pixels[int(places[number]) :][:length].copy_(job.files[begin : begin + length], non_blocking=True)
        facts, drawn = facts_of(table, places, out.shape[2:], out.shape[1])
        self._draw(self._pixels, torch.from_numpy(drawn).to(self.device), facts, out)
        self._stream.synchronize()  # the files are read, and the block is free

    def _decode(self, where: Any, how_long: Any, targets: Any, table: Any) -> bool:
        widths = table[:, _COLUMN["width"]]
        is_done = self._nvjpeg.decode(where, how_long, targets, widths, self._stream.cuda_stream)
        self._stream.synchronize()  # a call that comes before the last one has ended waits for ever
        return is_done

    def _decode_here(self, job: DecodeJob, row: Any, place: int) -> None:
        """Decode a picture that the engine refuses as the CPU does, errors included."""
        from PIL import Image

        begin, length = int(row[0]), int(row[1])
        pixels = np.array(Image.open(io.BytesIO(job.files[begin : begin + length].numpy().tobytes())).convert("RGB"))
        content = torch.from_numpy(pixels.reshape(-1))
        self._pixels[place : place + len(content)].copy_(content)
        job.on_host += 1


def _failure_of(act: Callable[..., None], *arguments: Any) -> BaseException | None:
    """What a call raises, without what it was raised from: frames of that would refer to a job and its events."""
    try:
        act(*arguments)
    except BaseException as error:
        error.__traceback__ = error.__cause__ = error.__context__ = None
        return error
    return None


def files_in(table: torch.Tensor) -> int:
    """How many rows of a table are of files, not of pixels."""
    return int((table[:, _COLUMN["is_pixels"]] == 0).sum())


def decoded_bytes(table: Any) -> Any:
    """How many bytes each picture of a table has when it is decoded."""
    colours = np.where(table[:, _COLUMN["is_pixels"]] == 1, 1, 3)
    return table[:, _COLUMN["width"]] * table[:, _COLUMN["height"]] * colours


def parts_of(table: Any) -> list[slice]:
    """A batch's pictures in parts that are within the budget once decoded; a larger picture is one by itself."""
    parts, begin, total = [], 0, 0
    for number, size in enumerate(decoded_bytes(table).tolist()):
        if number > begin and total + size > BUDGET_BYTES:
            parts.append(slice(begin, number))
            begin, total = number, 0
        total += size
    return [*parts, slice(begin, len(table))]


def facts_of(table: Any, places: Any, shape: Sequence[int], colours: int) -> tuple[TableFacts, Any]:
    """What launches need to know, and the table for the device: where pixels lie, and where rows lie in between."""
    crop, to = table[:, 7:9], table[:, 9:11]
    support = np.where(table[:, 11:12] == BICUBIC, 2.0, 1.0) * np.maximum(crop / to, 1.0)
    taps = (2 * np.ceil(support).astype(np.int64) + 1).max(0)
    between = table[:, 8] * shape[1] * colours
    drawn = np.empty((len(table), len(DRAWN) + 1), np.int64)
    drawn[:, : len(DRAWN)] = table[:, : len(DRAWN)]
    drawn[:, 0], drawn[:, len(DRAWN)] = places, np.cumsum(between) - between
    return TableFacts((int(taps[0]), int(taps[1])), int(table[:, 8].max()), int(between.sum())), drawn


def recipe_of(row: Sequence[int], shape: Sequence[int]) -> Recipe:
    """The recipe of a table's row, for a result of so many colours, rows and columns."""
    window = row[12], row[13], shape[2], shape[1]
    box = row[5], row[6], row[7], row[8]
    return Recipe(row[3], row[4], box, (row[9], row[10]), row[11], window, bool(row[14]), steps_in(row))


class Decoders:
    """The decoders of one device. Batches go to them in turn."""

    def __init__(self, device: torch.device) -> None:
        self.each = [Decoder(device) for _ in range(THREADS)]
        self._turns = itertools.cycle(self.each)

    def submit(self, files: torch.Tensor, table: torch.Tensor, shape: Sequence[int], ops: tail.Ops) -> DecodeJob:
        """Decode a batch of so many colours, rows and columns."""
        return next(self._turns).submit(files, table, shape, ops)

    def close(self) -> None:
        """End all threads."""
        for decoder in self.each:
            decoder.close()


_decoders: dict[torch.device, Decoders] = {}
_inherited: list[Any] = []
"""What belongs to the parent of this process. It may not be freed here, where CUDA cannot be called."""


@functools.cache
def decoder_of(device: torch.device) -> Decoders:
    """What decodes on a device. Its threads run until this process ends."""
    found = _decoders[device] = Decoders(device)
    atexit.register(found.close)
    return found


_held: list[threading.Lock] = []
"""What a fork has taken. Another thread may make a decoder meanwhile."""


def _stand_still() -> None:
    for decoders in list(_decoders.values()):
        for decoder in decoders.each:
            decoder.standing_still.acquire()
            _held.append(decoder.standing_still)


def _go_on() -> None:
    held = list(_held)
    _held.clear()  # before: once they are free, another thread may hold them for a fork of its own
    for lock in held:
        lock.release()


def _leave() -> None:
    _inherited.append(dict(_decoders))
    _held.clear()
    _decoders.clear()
    decoder_of.cache_clear()


forks.register(forks.Stage.THREADS, before=_stand_still, after_in_parent=_go_on, after_in_child=_leave)
