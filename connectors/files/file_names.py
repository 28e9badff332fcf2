"""Names of files, which are UTF-8 whatever Python's locale is.

Python encodes names as its locale says: in Latin-1, `country=Österreich` would be bytes that Spark and pyarrow cannot
read, and another process would not find. So the text of a name, as decisions and positions hold it, is turned into what
Python encodes as its UTF-8 bytes, and back.
"""

from __future__ import annotations

import os
import sys
from typing import Final

_IS_UTF8: Final = sys.getfilesystemencoding() == "utf-8"


def on_disk(name: str) -> str:
    """Return what Python's file functions take for a name, so that the name on disk is UTF-8."""
    return name if _IS_UTF8 or name.isascii() else os.fsdecode(name.encode("utf-8", "surrogateescape"))


def as_text(path: str) -> str:
    """Return the text of a path that Python's file functions gave, as pyarrow takes it, too."""
    return path if _IS_UTF8 or path.isascii() else os.fsencode(path).decode("utf-8", "surrogateescape")
