# PyTorch beside Everglow and oneDNN, or on a card cuBLASLt and cuDNN: the linear, recurrent, attention, softmax and gnmt cases with the
# same threads, sizes, dtypes and ranges of the inputs, in turn: a start of `everglow bench`, a slice of PyTorch's runs, and so on.
# The build does not need this file.
# Usage: bench/peers_torch.py [--device cuda:N] [--program FILE] [--case LINE]... [--tag TAG] [--filter TEXT] [--story] [--rounds N]
#        [--threads N] [--out FILE]
import argparse
import datetime
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time

try:
    import torch
except ImportError as error:
    sys.exit(f'peers_torch.py: needs a Python with PyTorch ({error})')

import peers_torch_cuda
from gnmt_torch import Gnmt
from torch_layers import DTYPES, PROBLEMS, Case, bytes_of, read_case, summarised

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROTATE_MIB = 210
SLICE, WARMUP = 15, 3  # timed runs of a slice: as many as `everglow bench` makes of a row in its five rounds


def arguments():
    parser = argparse.ArgumentParser(description='Time PyTorch and Everglow in turn.')
    parser.add_argument('--device', default='cpu', help='cpu, or cuda:N: each backend of attention, and our program for cards (cpu)')
    parser.add_argument('--program', help='everglow, or on a card everglow_cuda_bench; by default that of build/cpu or build/gpu')
    parser.add_argument('--case', action='append', metavar='LINE', help='time this problem in place of the built-in ones')
    parser.add_argument('--tag', help='built-in cases with this tag (headline; on a card card)')
    parser.add_argument('--story', action='store_true', help='on a card: the cases of the story of attention')
    parser.add_argument('--filter', default='', metavar='TEXT', help='only built-in cases whose line holds the text')
    parser.add_argument('--kernel', action='append', default=[], metavar='NAME', help='on a card: of our rows only this one')
    parser.add_argument('--peer', action='append', default=[], metavar='NAME', help='on a card: only this way of PyTorch, e.g. flex')
    parser.add_argument('--direction', choices=('forward', 'backward', 'train', 'evaluate'), help='only this one')
    parser.add_argument('--threads', type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument('--rounds', type=int, help='slices of each (3; on a card 2)')
    parser.add_argument('--out', metavar='FILE', help='write a line of JSON for each row')
    chosen = parser.parse_args()
    on_card = chosen.device != 'cpu'
    if fault := peers_torch_cuda.fault(chosen.device) if on_card else '':
        parser.error(fault)
    for option in ('story', 'kernel', 'peer'):
        if getattr(chosen, option) and not on_card:
            parser.error(f'--{option}: expected --device cuda:N, got cpu')
    usual, target = ('build/gpu/bench/cuda/everglow_cuda_bench', 'gpu') if on_card else ('build/cpu/everglow', 'cpu')
    chosen.program = chosen.program or os.path.join(ROOT, usual)
    chosen.tag, chosen.rounds = chosen.tag or ('card' if on_card else 'headline'), chosen.rounds or (2 if on_card else 3)
    if not os.access(chosen.program, os.X_OK):
        parser.error(f'--program: no program at {chosen.program}; cmake --build --preset {target} makes it')
    if chosen.rounds < 1 or chosen.threads < 1:
        parser.error('--rounds and --threads: expected at least 1')
    return chosen


def has_peer(layer, fields):
    """What PyTorch has too: its GRU resets after the product, no layer resets inside a sequence or has rows without steps, attention
    has no window, and it aligns the causal mask of unequal lengths at the top left."""
    if layer == 'gnmt':
        return fields.get('dtype', 'f32') == 'f32'
    if fields.get('rows') == 'preferred':
        return False
    if fields.get('dtype', 'f32') not in DTYPES or fields.get('cell') == 'gru_reset_before':
        return False
    if 'resets' in fields or fields.get('lengths') == 'zero' or 'window_left' in fields or 'window_right' in fields:
        return False
    return layer in PROBLEMS and not (fields.get('causal') == '1' and fields.get('queries') != fields.get('keys'))


def timed(one, direction, training):
    """Microseconds of one run; what a backward needs is made before the clock starts."""
    if direction == 'forward':
        with torch.inference_mode(not training):
            start = time.perf_counter()
            one.forward()
            return (time.perf_counter() - start) * 1e6
    y, leaves = one.forward(), one.leaves()
    start = time.perf_counter()
    torch.autograd.grad(y, leaves, one.dy)
    return (time.perf_counter() - start) * 1e6


def own_rows(program):
    """The CPU rows of each layer but the reference, from `everglow info`."""
    rows = {}
    for line in subprocess.run((program, 'info'), check=True, capture_output=True, text=True).stdout.splitlines():
        words = line.replace(',', ' ').split()
        if len(words) > 2 and words[0] in PROBLEMS and words[1] == 'cpu':
            rows[words[0]] = [name for name in words[2:] if not name.startswith('reference.')]
    return rows


def ours(chosen, line, direction, kernels):
    """The records of one start of `everglow bench`: our rows and oneDNN's."""
    layer, fields = read_case(line)
    command = [chosen.program, 'bench', layer, '--direction', direction, '--threads', str(chosen.threads), '--seconds', '0',
               '--rotate', str(ROTATE_MIB), '--json']
    if layer in ('linear', 'recurrent'):
        command.append('--peers')
    for key, value in fields.items():
        command += ['--' + key.replace('_', '-'), value]
    for name in kernels:
        command += ['--kernel', name]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(text) for text in out.splitlines()]


def layer_runs(line, direction):
    """PyTorch's side of a layer: a function that times its next run."""
    layer, fields = read_case(line)
    case, training = Case(fields), fields.get('training', '1') == '1'
    torch.manual_seed(1)
    sets = [PROBLEMS[layer](case)]
    wanted = min(64, max(2, math.ceil(ROTATE_MIB * 2 ** 20 / bytes_of(sets[0]))))
    sets += [PROBLEMS[layer](case) for _ in range(wanted - 1)]
    turns = itertools.cycle(sets)
    return lambda: timed(next(turns), direction, training)


def model_runs(chosen, line, direction, record):
    """PyTorch's side of the translation model, on the batches that the record counts."""
    model = Gnmt(read_case(line)[1], chosen.program)
    if (model.tokens, model.pairs) != (record['tokens'], record['pairs']):
        sys.exit(f'peers_torch.py: expected the same batches, got {model.tokens} tokens of {model.pairs} pairs beside '
                 f'{record["tokens"]} of {record["pairs"]}')
    turns = itertools.count()

    def run():
        turn = next(turns)
        start = time.perf_counter()
        getattr(model, direction)(turn)
        return (time.perf_counter() - start) * 1e6
    return run


def compare(chosen, line, direction, kernels):
    """The records of our rows, oneDNN's and PyTorch's on one direction of a case, timed in turn."""
    theirs, rows, run = [], {}, None
    layer = read_case(line)[0]
    for _ in range(chosen.rounds):
        for record in ours(chosen, line, direction, kernels):
            rows.setdefault(record['kernel'], (record, []))[1].extend(record['samples_us'])
        any_row = next(iter(rows.values()))[0]
        try:
            if run is None:
                run = model_runs(chosen, line, direction, any_row) if layer == 'gnmt' else layer_runs(line, direction)
            for timed_run in range(-WARMUP, SLICE):
                us = run()
                theirs += [us] if timed_run >= 0 else []
        except (RuntimeError, NotImplementedError) as error:
            print(f'PyTorch cannot run {line} {direction}: {str(error).splitlines()[0]}')
            return [summarised(record, samples, None) for record, samples in rows.values()]
    mine = dict(any_row, kernel=f'torch.{layer}', chosen=False, isa=torch.backends.cpu.get_cpu_capability(), predicted_us=None,
                version=torch.__version__, warmup=WARMUP,
                date=datetime.datetime.now(datetime.timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ'))
    ref = (mine['kernel'], statistics.median(theirs))
    return [summarised(record, samples, ref) for record, samples in rows.values()] + [summarised(mine, theirs, None)]


def chosen_lines(chosen):
    if chosen.case:
        lines = chosen.case
    else:
        command = (chosen.program, 'bench', 'all', '--tag', chosen.tag, '--list')
        if chosen.device != 'cpu':
            command = (chosen.program, '-', 'story' if chosen.story else 'all', '--tag', chosen.tag, '--list')
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        lines = [line for line in listed.splitlines() if chosen.filter in line]
    kept = [line for line in lines if has_peer(*read_case(line))]
    for line in sorted(set(lines) - set(kept)):
        print(f'left out, PyTorch has no such thing: {line}')
    return kept


def timed_case(chosen, line, rows):
    """The records of a case, direction by direction."""
    layer, fields = read_case(line)
    if chosen.device != 'cpu':
        yield from peers_torch_cuda.compare(chosen, line)
        return
    directions = ('forward', 'backward') if fields.get('training', '1') == '1' else ('forward',)
    for direction in ('train', 'evaluate') if layer == 'gnmt' else directions:
        if chosen.direction in (None, direction):
            yield from compare(chosen, line, direction, rows.get(layer, []))


def main():
    chosen = arguments()
    torch.set_num_threads(chosen.threads)
    rows, lines = {} if chosen.device != 'cpu' else own_rows(chosen.program), chosen_lines(chosen)
    if not lines:
        sys.exit('peers_torch.py: no case is left to time; without --tag and --filter there are some')
    with open(chosen.out or os.devnull, 'w', encoding='utf-8') as out:
        for line in lines:
            print(f'\n{line}')
            for record in timed_case(chosen, line, rows):
                out.write(json.dumps(record) + '\n')
                ratio = f"{record['ratio']:8.2f} x torch" if record['ratio'] else ''
                print(f"{record['direction']:20}{record['kernel']:34}{record['median_us']:11.1f} us {ratio}", flush=True)
                out.flush()  # a run that is cut off keeps what it timed


if __name__ == '__main__':
    main()
