"""A process that is killed before or after one of its writes is on the disk."""

import os


class Killed(BaseException):
    """The process ends at once, as by kill -9."""


class KillAtFsync:
    """In place of `os.fsync`: while `live`, raises `Killed` at the call with the number `at`.

    With `after`, what was written is on the disk by then. `more` says whether that call came.
    """

    def __init__(self, monkeypatch, after):
        self.real, self.after = os.fsync, after
        self.at, self.count, self.live = 0, 0, False
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, number):
        self.count += self.live
        now = self.live and self.count == self.at
        if now and not self.after:
            raise Killed
        self.real(number)
        if now:
            raise Killed

    @property
    def more(self):
        return self.count >= self.at

    def next(self):
        """Choose the next call, and count from 0."""
        self.at, self.count = self.at + 1, 0
