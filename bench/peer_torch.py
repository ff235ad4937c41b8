# PyTorch beside Everglow: the linear, LSTM and attention cases with the same threads on the same sizes, in turn: a slice of
# PyTorch's runs, a start of everglow_bench, and so on. Needs a Python with torch; neither build nor tests need this file.
# Usage: bench/peer_torch.py [--program FILE] [--filter TEXT] [--threads N] [--rounds N] [--out FILE]
import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYERS = ('linear', 'recurrent', 'attention')
ROWS = 'onednn.linear,cpu.linear,cpu.recurrent_stepwise,cpu.attention_flash2'
ROTATE_MIB = 210
SLICE = 15  # timed runs of a slice: as many as everglow_bench makes of a row in its five rounds


def arguments():
    parser = argparse.ArgumentParser(description='Time PyTorch and Everglow in turn.')
    parser.add_argument('--program', default=os.path.join(ROOT, 'build/cpu/everglow_bench'))
    parser.add_argument('--filter', default='', metavar='TEXT', help='only cases whose line holds the text')
    parser.add_argument('--threads', type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument('--rounds', type=int, default=3, help='slices of each (3)')
    parser.add_argument('--out', metavar='FILE', help='write a line of JSON for each row')
    chosen = parser.parse_args()
    if not os.access(chosen.program, os.X_OK):
        parser.error(f'--program: no program at {chosen.program}; cmake --build --preset cpu --target everglow_bench makes it')
    if chosen.rounds < 1 or chosen.threads < 1:
        parser.error('--rounds and --threads: expected at least 1')
    return chosen


def read_case(line):
    layer, *fields = line.split()
    values = dict(field.split('=') for field in fields)
    return layer, {key: int(value) if value.isdigit() else value for key, value in values.items()}


class Linear:
    """One set of tensors; forward() returns the output, and leaves() are what gets a gradient."""

    def __init__(self, c):
        self.x = (torch.rand(c['batch'], c['inputs']) * 2 - 1).requires_grad_()
        self.layer = torch.nn.Linear(c['inputs'], c['outputs'])
        self.dy = torch.rand(c['batch'], c['outputs']) * 2 - 1

    def forward(self):
        return self.layer(self.x)

    def leaves(self):
        return [self.x, *self.layer.parameters()]


class Recurrent:
    def __init__(self, c):
        self.layer = torch.nn.LSTM(c['inputs'], c['hidden'])
        self.x = (torch.rand(c['steps'], c['batch'], c['inputs']) * 2 - 1).requires_grad_()
        self.state = tuple(torch.rand(1, c['batch'], c['hidden']) * 2 - 1 for _ in range(2))
        self.dy = torch.rand(c['steps'], c['batch'], c['hidden']) * 2 - 1

    def forward(self):
        return self.layer(self.x, self.state)[0]

    def leaves(self):
        return [self.x, *self.layer.parameters()]


class Attention:
    def __init__(self, c):
        def tensor(rows):  # [B, S, H, D] in memory, as Everglow's
            return torch.rand(c['batch'], rows, c['heads'], c['head_dim']) * 2 - 1
        self.q, self.k, self.v = (tensor(c[rows]).requires_grad_() for rows in ('queries', 'keys', 'keys'))
        self.dy = tensor(c['queries']).transpose(1, 2)

    def forward(self):
        q, k, v = (part.transpose(1, 2) for part in (self.q, self.k, self.v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    def leaves(self):
        return [self.q, self.k, self.v]


PROBLEMS = {'linear': Linear, 'recurrent': Recurrent, 'attention': Attention}


def bytes_of(one):
    # An input, its gradient, an output and its gradient.
    return 4 * (2 * sum(leaf.numel() for leaf in one.leaves()) + 2 * one.dy.numel())


def timed(one, direction):
    """Microseconds of one run; what a backward needs is made before the clock starts."""
    if direction == 'forward':
        start = time.perf_counter()
        one.forward()
        return (time.perf_counter() - start) * 1e6
    y, leaves = one.forward(), one.leaves()
    start = time.perf_counter()
    torch.autograd.grad(y, leaves, one.dy)
    return (time.perf_counter() - start) * 1e6


def ours(chosen, line, direction):
    """The records of one start of everglow_bench."""
    with tempfile.NamedTemporaryFile('r', suffix='.jsonl') as out:
        command = [chosen.program, '--case', line, '--direction', direction, '--rows', ROWS, '--threads', str(chosen.threads),
                   '--seconds', '0', '--rotate', str(ROTATE_MIB), '--out', out.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return [json.loads(text) for text in out]


def summarised(record, samples, ref):
    median = statistics.median(samples)
    cuts = statistics.quantiles(samples, n=10, method='inclusive')
    record.update(samples_us=[round(us, 3) for us in samples], median_us=round(median, 3), p10_us=round(cuts[0], 3),
                  p90_us=round(cuts[-1], 3))
    record['ref'] = {'name': ref[0], 'median_us': round(ref[1], 3)} if ref else None
    record['ratio'] = round(ref[1] / median, 4) if ref else None
    return record


def compare(chosen, line, direction):
    """The records of PyTorch and of our rows on one direction of a case."""
    layer, fields = read_case(line)
    torch.manual_seed(1)
    sets = [PROBLEMS[layer](fields)]
    wanted = min(64, max(2, math.ceil(ROTATE_MIB * 2 ** 20 / bytes_of(sets[0]))))
    sets += [PROBLEMS[layer](fields) for _ in range(wanted - 1)]
    theirs, rows, run = [], {}, 0
    for _ in range(chosen.rounds):
        for timed_run in range(-3, SLICE):
            us = timed(sets[run % wanted], direction)
            run += 1
            theirs += [us] if timed_run >= 0 else []
        for record in ours(chosen, line, direction):
            rows.setdefault(record['kernel'], (record, []))[1].extend(record['samples_us'])
    name = f'torch.{layer}'
    any_row = next(iter(rows.values()))[0]
    mine = dict(any_row, kernel=name, isa=torch.backends.cpu.get_cpu_capability(), version=torch.__version__, warmup=3,
                date=datetime.datetime.now(datetime.timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ'))
    for key in ('commit', 'dirty'):
        del mine[key]
    ref = (name, statistics.median(theirs))
    return [summarised(record, samples, ref) for record, samples in rows.values()] + [summarised(mine, theirs, None)]


def main():
    chosen = arguments()
    torch.set_num_threads(chosen.threads)
    listed = subprocess.run((chosen.program, '--list'), check=True, capture_output=True, text=True).stdout.splitlines()
    lines = [line for line in listed if line.split()[0] in LAYERS and chosen.filter in line]
    if not lines:
        sys.exit(f'peer_torch.py: --filter: no linear, recurrent or attention case holds "{chosen.filter}"')
    with open(chosen.out or os.devnull, 'w', encoding='utf-8') as out:
        for line in lines:
            print(f'\n{line}')
            for direction in ('forward', 'backward'):
                for record in compare(chosen, line, direction):
                    out.write(json.dumps(record) + '\n')
                    ratio = f"{record['ratio']:8.2f} x torch" if record['ratio'] else ''
                    print(f"{direction:17}{record['kernel']:26}{record['median_us']:11.1f} us {ratio}", flush=True)


if __name__ == '__main__':
    main()
