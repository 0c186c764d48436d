"""An open file of the file system: reads are ranges, a written one is stored when it closes."""

# fsspec has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUntypedBaseClass=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportIncompatibleMethodOverride=false

from typing import Any

from fsspec.spec import AbstractBufferedFile


class WholeFile(AbstractBufferedFile):
    """What `open` returns. A written file is kept in memory, and stored by one `pipe_file`.

    So it appears whole when it is closed, or never. Mode `xb` stores it only if there is none.
    """

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.cat_file(self.path, start, end)

    def _initiate_upload(self) -> None:
        """Nothing is sent before the file is closed."""

    def _upload_chunk(self, final: bool = False) -> bool:  # noqa: FBT001, FBT002 - fsspec's
        if not final:
            return False  # the buffer grows
        mode: dict[str, Any] = {"mode": "create"} if "x" in self.mode else {}
        self.fs.pipe_file(self.path, self.buffer.getvalue(), **mode)
        return True
