#!/usr/bin/env python3
"""Measures a KV cache on disk: stores and loads against fio, encryption, lookups, a restart, loads beside stores.

Every round runs each configuration once. Chunks of 4 MiB are written and read with O_DIRECT, and fio uses the same size
and the better of two depths.

    STRAIGHTWAY=path/to/straightway python3 bench/kv.py --folder DIR [--size BYTES] [--rounds N] [--restart] [--beside]

`--restart` also opens a tier of a million chunks of 4 KiB, for which the drive needs 5 GB. `--device cuda:0` loads into
pages of 2 MiB and of 32 KiB of a GPU instead, from the page cache, and prints the rates.
"""

import os
import statistics
import tempfile

from harness import (
    Bench,
    drop_caches,
    facts,
    fio,
    lower_bound,
    missed,
    parser,
    receipt,
    remove,
    rounds,
    straightway,
    version,
    write,
)

CHUNK = 4 << 20
DEPTHS = [8, 16]
DIRECT = ["--ioengine=io_uring", "--direct=1", "--bs=4M"]
LOADS_P99 = 0.99


class Kv(Bench):
    """The comparison."""

    def __init__(self, args):
        super().__init__(args)
        self.straightway = straightway()
        self.folder = tempfile.mkdtemp(prefix="straightway-kv-", dir=args.folder)
        self.env = dict(os.environ, XDG_STATE_HOME=os.path.join(self.folder, "state"))

    def kv(self, *options, size=None, chunk=CHUNK):
        """One run of `straightway kv bench`."""
        drop_caches()
        sizes = ["--size", str(size or self.args.size), "--kv-chunk", str(chunk)]
        return receipt(self.straightway, "kv", "bench", self.folder, "--json", *sizes, *options, env=self.env)

    def round(self):
        """Each configuration once."""
        for depth in DEPTHS:
            file = os.path.join(self.folder, "file")
            for work in ["write", "read"]:
                drop_caches()
                run = fio(file, self.args.size, f"--rw={work}", *DIRECT, f"--iodepth={depth}")
                self.note((work, f"fio x {depth}"), run)
            remove(file)
        for name, options in [("plain", []), ("encrypted", ["--encrypt"])]:
            found = self.kv(*options)
            self.note(("write", name), {"rate": found["put_bytes_per_s"]})
            self.note(("read", name), {"rate": found["get_bytes_per_s"]})
            self.note(("lookup", name), {"rate": found["lookup_s"]})

    def ratio(self, work, ours, theirs):
        """The ratios of two configurations by round, and the lower bound of their median."""
        pairs = zip(self.runs[(work, ours)], self.runs[(work, theirs)])
        ratios = [our["rate"] / their["rate"] for our, their in pairs]
        return {"median": statistics.median(ratios), "lower_bound": lower_bound(ratios), "ratios": ratios}

    def row(self, what, figure, bar, better):
        met = figure >= bar if better == "at least" else figure <= bar
        self.rows.append({"what": what, "figure": figure, "bar": f"{better} {bar}", "met": met})

    def gpu(self):
        """Loads into a GPU, from the page cache."""
        for page in ["2MiB", "32KiB"]:
            rates = []
            for _ in rounds(self.args.rounds):
                found = receipt(
                    self.straightway, "kv", "bench", self.folder, "--json", "--size", str(self.args.size),
                    "--device", self.args.device, "--page", page, env=self.env,
                )
                rates.append(found["get_bytes_per_s"])
            print(f"pages of {page}: {statistics.median(rates) / 1e9:.2f} GB/s")

    def run(self):
        try:
            if self.args.device != "host:":
                return self.gpu()
            for _ in rounds(self.args.rounds):
                self.round()
            return self.result()
        finally:
            remove(self.folder)

    def result(self):
        ratios = {}
        for work, name in [("write", "put"), ("read", "get")]:
            best = max((f"fio x {depth}" for depth in DEPTHS), key=lambda one: self.median((work, one), "rate"))
            ratios[name] = self.ratio(work, "plain", best)
            self.row(f"{name} against {best}, lower bound", ratios[name]["lower_bound"], 0.9, "at least")
        ratios["encrypted"] = self.ratio("read", "encrypted", "plain")
        self.row("encrypted get against plain", ratios["encrypted"]["median"], 0.7, "at least")
        self.row("lookup, s", self.median(("lookup", "plain"), "rate"), 5e-6, "at most")
        if self.args.restart:
            found = self.kv(size=1_000_000 * 4096, chunk=4096)
            self.row("restart with a million chunks, s", found["restart_s"], 1.0, "at most")
            self.row("memory, bytes a chunk", found["index_bytes_per_chunk"], 96, "at most")
        if self.args.beside:
            found = self.kv("--beside", "256MiB")["beside"]
            p99 = {name: sorted(times)[int(len(times) * LOADS_P99)] for name, times in found.items()}
            self.row("p99 of loads beside stores against alone", p99["beside_s"] / p99["alone_s"], 1.5, "at most")
        medians = {f"{work} {name}": self.median((work, name), "rate") for work, name in self.runs}
        return facts({"fio": version("fio"), "straightway": version(self.straightway)}) | {
            "bytes": self.args.size,
            "rounds": self.args.rounds,
            "rows": self.rows,
            "ratios": ratios,
            "medians": medians,
        }


def main():
    options = parser(__doc__, "kv.json")
    options.add_argument("--folder", default=".", help="folder on the drive")
    options.add_argument("--size", type=int, default=4 << 30)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--restart", action="store_true", help="also a tier of a million chunks")
    options.add_argument("--beside", action="store_true", help="also loads beside stores")
    options.add_argument("--device", default="host:", help="memory for the loads")
    args = options.parse_args()
    result = Kv(args).run()
    if result:
        write(args.out, result)
        for row in result["rows"]:
            print(f"{row['what']:48} {row['figure']:>12.4g}  {row['bar']}{missed(row['met'])}")


if __name__ == "__main__":
    main()
