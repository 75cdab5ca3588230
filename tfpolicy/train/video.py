"""Frames to a video file: GIF with Pillow, everything else with ffmpeg."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import numpy as np

Array = np.ndarray

# Takes frames by `send` and finishes the file when it is closed.
_Sink = Generator[None, Array, None]


class VideoWriter:
    """Writes frames to a file as they come; a context manager.

    Args:
        path: The suffix chooses the format: ".gif", or ".mp4" and what else ffmpeg knows.
        fps: Frames per second.

    Raises:
        ImportError: The package for this format is not installed; the message names it.
    """

    def __init__(self, path: Path, fps: float):
        make_sink = _gif if path.suffix.lower() == ".gif" else _ffmpeg
        self._sink = make_sink(path, fps)
        next(self._sink)

    def add(self, frame: Array) -> None:
        """Appends a frame [H, W, 3] uint8."""
        self._sink.send(np.ascontiguousarray(frame))

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._sink.close()


def _gif(path: Path, fps: float) -> _Sink:
    from PIL import Image

    frames: list[Image.Image] = []
    try:
        while True:
            # Quantised at once: a long episode in full colour would not fit into memory.
            frames.append(Image.fromarray((yield)).quantize(64))
    finally:
        if frames:
            path.parent.mkdir(parents=True, exist_ok=True)
            first, *rest = frames
            first.save(path, save_all=True, append_images=rest, duration=1000 / fps, loop=0)


def _ffmpeg(path: Path, fps: float) -> _Sink:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise ImportError(
            f"A {path.suffix} video needs the package imageio-ffmpeg; a .gif needs none."
        ) from error
    frame = yield
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = frame.shape[:2]
    # Only what the codec needs: by default sizes are rounded up to multiples of 16.
    writer = imageio_ffmpeg.write_frames(str(path), (width, height), fps=fps, macro_block_size=2)
    writer.send(None)
    try:
        while True:
            writer.send(frame)
            frame = yield
    finally:
        writer.close()
