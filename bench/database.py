"""A small database under a steady load: SQLite, with a transaction at a time that is durable when it returns."""

import random
import sqlite3
import time

ROWS = 20_000


class Database:
    """Accounts, of which each transaction changes two, and writes down that it did (as pgbench does)."""

    def __init__(self, path):
        self.connection = sqlite3.connect(path, isolation_level=None)
        execute = self.connection.execute
        execute("pragma journal_mode = wal")
        execute("pragma synchronous = full")
        execute("create table account (id integer primary key, balance integer, filler blob)")
        execute("create table history (id integer primary key, source integer, target integer, amount integer)")
        execute("begin")
        rows = ((number, random.randbytes(100)) for number in range(ROWS))
        self.connection.executemany("insert into account values (?, 0, ?)", rows)
        execute("commit")

    def transfer(self):
        """One transaction."""
        source, target, amount = random.randrange(ROWS), random.randrange(ROWS), random.randrange(1000)
        execute = self.connection.execute
        execute("begin immediate")
        execute("update account set balance = balance - ? where id = ?", (amount, source))
        execute("update account set balance = balance + ? where id = ?", (amount, target))
        execute("insert into history (source, target, amount) values (?, ?, ?)", (source, target, amount))
        execute("commit")

    def run(self, seconds):
        """Transactions one after the other; gives the latency of each in microseconds."""
        latencies, until = [], time.monotonic() + seconds
        while (begun := time.monotonic()) < until:
            self.transfer()
            latencies.append((time.monotonic() - begun) * 1e6)
        return latencies

    def load(self, rate, seconds):
        """Transactions at a fixed rate, one at a time; gives the latency of each in microseconds."""
        latencies, begun = [], time.monotonic()
        due = begun
        while due < begun + seconds:
            time.sleep(max(0, due - time.monotonic()))
            start = time.monotonic()
            self.transfer()
            latencies.append((time.monotonic() - start) * 1e6)
            # What came late does not make the next ones come faster.
            due = max(due + 1 / rate, start + 1 / rate)
        return latencies

    def close(self):
        """Checks that no transfer was lost in part."""
        total, = self.connection.execute("select sum(balance) from account").fetchone()
        state, = self.connection.execute("pragma integrity_check").fetchone()
        self.connection.close()
        if total != 0 or state != "ok":
            raise RuntimeError(f"the database is damaged: balances sum up to {total}, integrity check: {state}")
