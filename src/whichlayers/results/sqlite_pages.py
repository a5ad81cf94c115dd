"""Read the rows of an SQLite file page by page, without its tree of pages: what is left of a damaged file.

SQLite stops at the first damaged page of a table, and cannot reach the pages below a damaged inner page. Here every
leaf page is read on its own: its header says whether it holds rows of a table or entries of an index (which are the
rows of a table WITHOUT ROWID), and its cells hold complete records. The format: https://www.sqlite.org/fileformat.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Value = None | int | float | str | bytes
TABLE_LEAF, INDEX_LEAF, TABLE_INNER, INDEX_INNER = 0x0D, 0x0A, 0x05, 0x02
DEFAULT_PAGE_SIZE = 4096
INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # serial type -> bytes


@dataclass(frozen=True)
class Row:
    """One record: a row of a table, or of a table WITHOUT ROWID."""

    kind: Literal["table", "index"]
    rowid: int  # 0 in an index
    values: tuple[Value, ...]


class Damaged(Exception):
    """A page or a cell cannot be read."""


class Pages:
    """The pages of an SQLite file.

    Args:
        data: Content of the file.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        size = int.from_bytes(data[16:18], "big") if len(data) > 100 else 0
        size = 65536 if size == 1 else size
        valid = 512 <= size <= 65536 and size & (size - 1) == 0
        self.size = size if valid else DEFAULT_PAGE_SIZE
        self.usable = self.size - (data[20] if valid and data[20] <= 32 else 0)
        self.count = len(data) // self.size

    def rows(self) -> Iterator[Row]:
        """All rows that can be read: first those that SQLite would find, then those of pages it cannot reach.

        A row that was changed or deleted may be left in a page that is not used any more. Of two rows with the same
        key, the first is the current one.
        """
        reached = self._reachable()
        free = self._free()
        others = [n for n in range(1, self.count + 1) if n not in reached and n not in free]
        for number in [*reached, *others]:
            yield from self._page_rows(number)

    def _page(self, number: int) -> bytes:
        if not 1 <= number <= self.count:
            raise Damaged
        return self.data[(number - 1) * self.size : number * self.size]

    def _page_rows(self, number: int) -> Iterator[Row]:
        """The rows of a leaf page, or of an inner page of an index; cells that cannot be read are left out."""
        page = self._page(number)
        header = 100 if number == 1 else 0
        kind = page[header]
        if kind not in (TABLE_LEAF, INDEX_LEAF, INDEX_INNER):
            return
        first = header + (12 if kind == INDEX_INNER else 8)
        for i in range(int.from_bytes(page[header + 3 : header + 5], "big")):
            at = first + 2 * i
            if at + 2 > len(page):
                return
            try:
                yield self._cell(page, int.from_bytes(page[at : at + 2], "big"), kind)
            except (Damaged, IndexError, struct.error, UnicodeDecodeError):
                continue

    def _cell(self, page: bytes, at: int, kind: int) -> Row:
        """The record of the cell that starts at byte `at` of a page."""
        if kind == INDEX_INNER:
            at += 4  # the number of its child page
        length, at = _varint(page, at)
        rowid = 0
        if kind == TABLE_LEAF:
            rowid, at = _varint(page, at)
        payload = self._payload(page, at, length, kind)
        return Row("table" if kind == TABLE_LEAF else "index", rowid, _record(payload))

    def _payload(self, page: bytes, at: int, length: int, kind: int) -> bytes:
        """A record of `length` bytes; what does not fit into the page is in a list of overflow pages."""
        usable = self.usable
        largest = usable - 35 if kind == TABLE_LEAF else (usable - 12) * 64 // 255 - 23
        if length > len(self.data):
            raise Damaged
        if length <= largest:
            if at + length > len(page):
                raise Damaged
            return page[at : at + length]
        smallest = (usable - 12) * 32 // 255 - 23
        local = smallest + (length - smallest) % (usable - 4)
        local = local if local <= largest else smallest
        payload, following = page[at : at + local], int.from_bytes(page[at + local : at + local + 4], "big")
        while len(payload) < length:
            overflow = self._page(following)
            following = int.from_bytes(overflow[:4], "big")
            payload += overflow[4:usable]
        return payload[:length]

    def _reachable(self) -> dict[int, None]:
        """The pages that SQLite finds from the list of tables on page 1, in order."""
        found: dict[int, None] = {}
        waiting = [1]
        if self.count:
            roots = [row.values[3] for row in self._page_rows(1) if len(row.values) == 5]
            waiting += [root for root in roots if isinstance(root, int) and root > 0]
        while waiting:
            number = waiting.pop()
            if number in found or not 1 <= number <= self.count:
                continue
            page, header = self._page(number), 100 if number == 1 else 0
            found[number] = None
            if page[header] in (TABLE_INNER, INDEX_INNER):
                waiting.append(int.from_bytes(page[header + 8 : header + 12], "big"))
                cells = min(int.from_bytes(page[header + 3 : header + 5], "big"), self.size // 2)
                for i in range(cells):
                    at = int.from_bytes(page[header + 12 + 2 * i : header + 14 + 2 * i], "big")
                    waiting.append(int.from_bytes(page[at : at + 4], "big"))
        return found

    def _free(self) -> set[int]:
        """The pages in SQLite's list of free pages: what they hold was deleted."""
        free: set[int] = set()
        trunk = int.from_bytes(self.data[32:36], "big") if self.count else 0
        while 1 < trunk <= self.count and trunk not in free:
            free.add(trunk)
            page = self._page(trunk)
            leaves = min(int.from_bytes(page[4:8], "big"), self.size // 4 - 2)
            free.update(int.from_bytes(page[8 + 4 * i : 12 + 4 * i], "big") for i in range(leaves))
            trunk = int.from_bytes(page[:4], "big")
        return free


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer of 1 to 9 bytes at `at`, and where it ends."""
    value = 0
    for i in range(8):
        byte = data[at + i]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + i + 1
    return value << 8 | data[at + 8], at + 9


def _record(payload: bytes) -> tuple[Value, ...]:
    """The values of a record."""
    header_end, at = _varint(payload, 0)
    types = []
    while at < header_end:
        serial, at = _varint(payload, at)
        types.append(serial)
    if at != header_end:
        raise Damaged
    values: list[Value] = []
    for serial in types:
        value, at = _value(payload, at, serial)
        values.append(value)
    if at != len(payload):
        raise Damaged
    return tuple(values)


def _value(payload: bytes, at: int, serial: int) -> tuple[Value, int]:
    """The value of a serial type at byte `at`, and where it ends."""
    if serial == 0:
        return None, at
    if serial in (8, 9):
        return serial - 8, at
    if serial in (10, 11):
        raise Damaged
    size = INTEGER_BYTES.get(serial) or (8 if serial == 7 else (serial - 12) // 2)
    raw = payload[at : at + size]
    if len(raw) != size:
        raise Damaged
    if serial in INTEGER_BYTES:
        return int.from_bytes(raw, "big", signed=True), at + size
    if serial == 7:
        return struct.unpack(">d", raw)[0], at + size
    return (raw.decode() if serial % 2 else raw), at + size
