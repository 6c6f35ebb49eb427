"""Exact selection beside HiGHS (scipy) and PyTorch's activation-checkpointing knapsacks.

    cargo run --release -p bagualu-benches --example selection -- DIRECTORY
    python benches/peers/select_peers.py DIRECTORY

Reads the instances and this library's answers and times, solves each with scipy.optimize.milp to the same
optimum (a relative gap of 0), and prints ratios. PyTorch's knapsacks know recomputation only, one item per
tensor: they get each tensor's own closure as its time, and what they choose is evaluated with closures
shared, against the optimum with recomputation alone. They are left out where torch cannot be imported.
Needs numpy and scipy (requirements.txt).
"""

import json
import pathlib
import statistics
import sys
import time

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

REPEAT = 3


class Program:
    """An integer program over tensors and operators."""

    def __init__(self, instance, strategies):
        self.costs, self.bytes, self.rows = [], [], []
        self.fixed_bytes = 0
        self.recomputed = {}
        for number, layer in enumerate(instance["layers"]):
            self.add_layer(number, layer, instance.get("allow_collectives", []), strategies)
        self.limit = instance["limit_bytes"] - self.fixed_bytes

    def variable(self, cost, held):
        self.costs.append(cost)
        self.bytes.append(held)
        return len(self.costs) - 1

    def add_layer(self, number, layer, allowed, strategies):
        saved = {t for op in layer["ops"] for t in op.get("saves", [])}
        producer = {t: op["name"] for op in layer["ops"] for t in op.get("makes", [])}
        inputs = {t["name"] for t in layer["tensors"] if t.get("block_input")}
        runs = {op["name"]: self.variable(op.get("forward_ns", 0), 0) for op in layer["ops"]}
        for op in layer["ops"]:
            run = runs[op["name"]]
            if op.get("collective") not in [None, *allowed]:
                self.rows.append(({run: 1}, -np.inf, 0))
            for t in set(op.get("reads", [])) - saved - inputs:
                before = runs.get(producer.get(t))
                terms = {run: 1} if before is None else {run: 1, before: -1}
                self.rows.append((terms, -np.inf, 0))
        for t in layer["tensors"]:
            name = t["name"]
            if name in inputs:
                self.fixed_bytes += t["bytes"]
            elif name in saved:
                choice = {self.variable(0, t["bytes"]): 1}
                if name in producer and "recompute" in strategies:
                    x = self.variable(0, 0)
                    choice[x] = 1
                    self.recomputed[number, name] = x
                    self.rows.append(({x: 1, runs[producer[name]]: -1}, -np.inf, 0))
                if "copy_out_ns" in t and "offload" in strategies:
                    choice[self.variable(t["copy_out_ns"] + t["copy_in_ns"], 0)] = 1
                if "cast_ns" in t and "quantize" in strategies:
                    choice[self.variable(t["cast_ns"] + t["uncast_ns"], t["quantized_bytes"])] = 1
                self.rows.append((choice, 1, 1))

    def solve(self, fixed=None):
        """(seconds, added ns), or None if nothing fits. `fixed`: the recomputed tensors, if given."""
        rows = list(self.rows)
        if fixed is not None:
            rows += [({x: 1}, int(key in fixed), int(key in fixed)) for key, x in self.recomputed.items()]
        else:
            rows.append((dict(enumerate(self.bytes)), -np.inf, self.limit))
        matrix = np.zeros((len(rows), len(self.costs)))
        for i, (terms, _, _) in enumerate(rows):
            for j, value in terms.items():
                matrix[i, j] = value
        # Bytes in units that the solver's tolerances can tell apart.
        scale = np.maximum(np.abs(matrix).max(axis=1), 1)
        low = np.array([row[1] for row in rows]) / scale
        high = np.array([row[2] for row in rows]) / scale
        constraint = LinearConstraint(matrix / scale[:, None], low, high)
        start = time.perf_counter()
        result = milp(
            self.costs, integrality=np.ones(len(self.costs)), bounds=Bounds(0, 1),
            constraints=constraint, options={"mip_rel_gap": 0},
        )
        seconds = time.perf_counter() - start
        if result.x is None:
            return None
        # The solver's answer in whole numbers.
        chosen = np.round(result.x).astype(np.int64)
        return seconds, int(chosen @ np.array(self.costs, dtype=np.int64)), int(
            chosen @ np.array(self.bytes, dtype=np.int64)
        )


def knapsacks():
    try:
        from torch._functorch._activation_checkpointing import knapsack
    except ImportError as error:
        print(f"PyTorch's knapsacks left out: {error}")
        return {}
    names = ["greedy", "dp", "ilp"]
    return {name: getattr(knapsack, f"{name}_knapsack") for name in names}


def own_times(program, instance):
    """(key, bytes, ns of its own closure) of each tensor that can be recomputed at all."""
    items = []
    alone = Program(instance, {"recompute"})
    for key in alone.recomputed:
        solved = alone.solve({key})
        if solved is not None:
            layer = instance["layers"][key[0]]
            held = next(t["bytes"] for t in layer["tensors"] if t["name"] == key[1])
            items.append((key, held, solved[1]))
    return items


def main():
    directory = pathlib.Path(sys.argv[1])
    peers, rows, torch_rows = knapsacks(), [], {}
    for path in sorted(directory.glob("*.json")):
        data = json.loads(path.read_text())
        answer, instance = data["answer"], data["instance"]
        program = Program(instance, {"recompute", "offload", "quantize"})
        solved = min(program.solve() for _ in range(REPEAT))
        rows.append((path.stem, solved[0] * 1e9, solved[1], solved[2] <= program.limit, answer))
        if not peers:
            continue
        restricted = Program(instance, {"recompute"})
        best = restricted.solve()
        items = own_times(restricted, instance)
        total = sum(held for _, held, _ in items)
        spare = restricted.limit - (sum(
            t["bytes"] for layer in instance["layers"] for t in layer["tensors"]
            if t["name"] in {s for op in layer["ops"] for s in op.get("saves", [])}
            and not t.get("block_input")
        ) - total)
        if best is None or spare < 0 or best[1] == 0:
            continue
        memory, times = [held / total for _, held, _ in items], [float(ns) for *_, ns in items]
        for name, solve in peers.items():
            start = time.perf_counter()
            _, _, again = solve(memory, times, spare / total)
            seconds = time.perf_counter() - start
            chosen = {items[i][0] for i in again}
            evaluated = restricted.solve(chosen)
            held = sum(h for key, h, _ in items if key not in chosen)
            torch_rows.setdefault(name, []).append((seconds, evaluated[1] / best[1] - 1, held <= spare))

    print("| instance | optimum, ms | HiGHS, ms | cold, µs | warm, µs | cold × | warm × |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    same = 0
    for name, highs, ns, fits, a in rows:
        # HiGHS accepts a constraint that is violated by its tolerance; such an answer is no optimum.
        same += fits and ns == a["added_ns"]
        print(f"| {name} | {a['added_ns'] / 1e6:.3f} | {highs / 1e6:.1f} | {a['cold_ns'] / 1e3:.0f} "
              f"| {a['warm_ns'] / 1e3:.0f} | {highs / a['cold_ns']:.0f} | {highs / a['warm_ns']:.0f} |")
        if fits and ns < a["added_ns"]:
            print(f"ERROR: {name}: HiGHS found {ns} ns, this library {a['added_ns']} ns")
    ratios = [[r[1] / r[4][key] for r in rows] for key in ("cold_ns", "warm_ns")]
    for label, ratio in zip(("cold", "warm"), ratios):
        print(f"{label}: median {statistics.median(ratio):.0f}×, least {min(ratio):.0f}×")
    worse = sum(fits and ns > a["added_ns"] for _, _, ns, fits, a in rows)
    print(f"same optimum on {same} of {len(rows)}; HiGHS above it on {worse}, "
          f"over the limit by its tolerance on {sum(not fits for *_, fits, _ in rows)}")
    for name, found in torch_rows.items():
        print(f"torch {name}: median {statistics.median(f[0] for f in found) * 1e3:.3f} ms, "
              f"mean {statistics.mean(f[1] for f in found) * 100:.1f} % above the optimum of recomputation "
              f"alone, over the limit on {sum(not f[2] for f in found)} of {len(found)}")


if __name__ == "__main__":
    main()
