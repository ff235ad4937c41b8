# PyTorch beside Everglow and oneDNN: the linear, recurrent, attention, softmax and gnmt cases with the same threads, sizes, dtypes and
# ranges of the inputs, in turn: a start of `everglow bench`, a slice of PyTorch's runs, and so on. Neither build nor tests need this
# file.
# Usage: bench/peers_torch.py [--program FILE] [--case LINE]... [--tag TAG] [--filter TEXT] [--threads N] [--rounds N] [--out FILE]
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

from gnmt_torch import Gnmt

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROTATE_MIB = 210
SLICE, WARMUP = 15, 3  # timed runs of a slice: as many as `everglow bench` makes of a row in its five rounds
DTYPES = {'f32': torch.float32, 'f16': torch.float16, 'bf16': torch.bfloat16}
ACTIVATIONS = {'none': lambda z: z, 'relu': torch.relu, 'silu': torch.nn.functional.silu,
               'gelu_erf': torch.nn.functional.gelu,
               'gelu_tanh': lambda z: torch.nn.functional.gelu(z, approximate='tanh')}


def arguments():
    parser = argparse.ArgumentParser(description='Time PyTorch and Everglow in turn.')
    parser.add_argument('--program', default=os.path.join(ROOT, 'build/cpu/everglow'))
    parser.add_argument('--case', action='append', metavar='LINE', help='time this problem in place of the built-in ones')
    parser.add_argument('--tag', default='headline', help='built-in cases with this tag (headline)')
    parser.add_argument('--filter', default='', metavar='TEXT', help='only built-in cases whose line holds the text')
    parser.add_argument('--direction', choices=('forward', 'backward', 'train', 'evaluate'), help='only this one')
    parser.add_argument('--threads', type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument('--rounds', type=int, default=3, help='slices of each (3)')
    parser.add_argument('--out', metavar='FILE', help='write a line of JSON for each row')
    chosen = parser.parse_args()
    if not os.access(chosen.program, os.X_OK):
        parser.error(f'--program: no program at {chosen.program}; cmake --build --preset cpu makes it')
    if chosen.rounds < 1 or chosen.threads < 1:
        parser.error('--rounds and --threads: expected at least 1')
    return chosen


def read_case(line):
    layer, *fields = line.split()
    return layer, dict(field.split('=') for field in fields)


class Case:
    """The fields of a case line, and tensors of its dtype."""

    def __init__(self, fields):
        self.fields = fields
        self.dtype = DTYPES[fields.get('dtype', 'f32')]

    def size(self, key, otherwise=1):
        return int(self.fields.get(key, otherwise))

    def uniform(self, *shape, low=-1.0, high=1.0):
        return (torch.rand(*shape) * (high - low) + low).to(self.dtype)


class Linear:
    """One set of tensors; forward() returns the output, and leaves() are what gets a gradient."""

    def __init__(self, c):
        self.x = c.uniform(c.size('batch'), c.size('inputs')).requires_grad_()
        self.layer = torch.nn.Linear(c.size('inputs'), c.size('outputs'), bias=c.size('bias') != 0, dtype=c.dtype)
        self.activation = ACTIVATIONS[c.fields.get('activation', 'none')]
        self.dy = c.uniform(c.size('batch'), c.size('outputs'))

    def forward(self):
        return self.activation(self.layer(self.x))

    def leaves(self):
        return [self.x, *self.layer.parameters()]


class Recurrent:
    def __init__(self, c):
        cell, layers, ways = c.fields.get('cell', 'lstm'), c.size('layers'), 1 + c.size('bidirectional', 0)
        kind = {'lstm': torch.nn.LSTM, 'gru': torch.nn.GRU}.get(cell, torch.nn.RNN)
        more = {'nonlinearity': cell} if kind is torch.nn.RNN else {}
        hidden, batch, projection, steps = c.size('hidden'), c.size('batch'), c.size('projection', 0), c.size('steps')
        if projection:
            more['proj_size'] = projection
        self.layer = kind(c.size('inputs'), hidden, layers, bias=c.size('bias') != 0, bidirectional=ways == 2,
                          dropout=float(c.fields.get('dropout', 0)), dtype=c.dtype, **more)
        self.x = c.uniform(steps, batch, c.size('inputs')).requires_grad_()
        h = c.uniform(layers * ways, batch, projection or hidden)
        self.state = (h, c.uniform(layers * ways, batch, hidden)) if cell == 'lstm' else h
        self.dy = c.uniform(steps, batch, ways * (projection or hidden))
        kinds = {'random': [1 + row * 7919 % steps for row in range(batch)], 'full': [steps] * batch}  # as bench/recurrent.cpp
        self.lengths = torch.tensor(kinds[c.fields['lengths']]) if 'lengths' in c.fields else None

    def forward(self):
        if self.lengths is None:
            return self.layer(self.x, self.state)[0]
        packed = torch.nn.utils.rnn.pack_padded_sequence(self.x, self.lengths, enforce_sorted=False)
        y = self.layer(packed, self.state)[0]
        return torch.nn.utils.rnn.pad_packed_sequence(y, total_length=len(self.x))[0]

    def leaves(self):
        return [self.x, *self.layer.parameters()]


class Attention:
    def __init__(self, c):
        def tensor(rows, heads, width):  # [B, S, H, D] in memory, as Everglow's
            return c.uniform(c.size('batch'), rows, heads, width)
        heads, width = c.size('heads'), c.size('head_dim')
        kv_heads, value = c.size('kv_heads', heads), c.size('value_dim', width)
        shapes = ((c.size('queries'), heads, width), (c.size('keys'), kv_heads, width), (c.size('keys'), kv_heads, value))
        self.q, self.k, self.v = (tensor(*shape).requires_grad_() for shape in shapes)
        self.dy = tensor(c.size('queries'), heads, value).transpose(1, 2)
        self.options = {'is_causal': c.size('causal', 0) != 0}
        if kv_heads != heads:
            self.options['enable_gqa'] = True

    def forward(self):
        q, k, v = (part.transpose(1, 2) for part in (self.q, self.k, self.v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **self.options)

    def leaves(self):
        return [self.q, self.k, self.v]


class Softmax:
    def __init__(self, c):
        self.x = c.uniform(c.size('rows'), c.size('columns'), low=-4.0, high=4.0).requires_grad_()
        self.function = torch.log_softmax if c.size('log', 0) else torch.softmax
        self.dy = c.uniform(c.size('rows'), c.size('columns'))

    def forward(self):
        return self.function(self.x, dim=-1)

    def leaves(self):
        return [self.x]


PROBLEMS = {'linear': Linear, 'recurrent': Recurrent, 'attention': Attention, 'softmax': Softmax}


def has_peer(layer, fields):
    """What PyTorch has too: its GRU resets after the product, no layer resets inside a sequence or has rows without steps, attention
    has no window, and it aligns the causal mask of unequal lengths at the top left."""
    if layer == 'gnmt':
        return fields.get('dtype', 'f32') == 'f32'
    if fields.get('dtype', 'f32') not in DTYPES or fields.get('cell') == 'gru_reset_before':
        return False
    if 'resets' in fields or fields.get('lengths') == 'zero' or 'window_left' in fields or 'window_right' in fields:
        return False
    return layer in PROBLEMS and not (fields.get('causal') == '1' and fields.get('queries') != fields.get('keys'))


def bytes_of(one):
    # An input, its gradient, an output and its gradient.
    return 2 * sum(part.numel() * part.element_size() for part in (*one.leaves(), one.dy))


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


def summarised(record, samples, ref):
    median = statistics.median(samples)
    cuts = statistics.quantiles(samples, n=10, method='inclusive')
    record.update(samples_us=[round(us, 3) for us in samples], median_us=round(median, 3), p10=round(cuts[0], 3),
                  p90=round(cuts[-1], 3))
    record['floor_share'] = round(record['floor_us'] / median, 4) if record['floor_us'] else None
    if 'steps' in record:
        record['us_per_step'] = round(median / record['steps'], 3)
    for what in ('tokens', 'pairs'):
        if what in record:
            record[f'{what}_per_second'] = round(record[what] / median * 1e6, 1)
    record['ref'] = {'name': ref[0], 'median_us': round(ref[1], 3)} if ref else None
    record['ratio'] = round(ref[1] / median, 4) if ref else None
    return record


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
        listed = subprocess.run((chosen.program, 'bench', 'all', '--tag', chosen.tag, '--list'), check=True, capture_output=True, text=True).stdout
        lines = [line for line in listed.splitlines() if chosen.filter in line]
    kept = [line for line in lines if has_peer(*read_case(line))]
    for line in sorted(set(lines) - set(kept)):
        print(f'left out, PyTorch has no such thing: {line}')
    return kept


def main():
    chosen = arguments()
    torch.set_num_threads(chosen.threads)
    rows, lines = own_rows(chosen.program), chosen_lines(chosen)
    if not lines:
        sys.exit('peers_torch.py: no case is left to time; without --tag and --filter there are some')
    with open(chosen.out or os.devnull, 'w', encoding='utf-8') as out:
        for line in lines:
            print(f'\n{line}')
            layer, fields = read_case(line)
            directions = ('forward', 'backward') if fields.get('training', '1') == '1' else ('forward',)
            for direction in ('train', 'evaluate') if layer == 'gnmt' else directions:
                if chosen.direction in (None, direction):
                    for record in compare(chosen, line, direction, rows.get(layer, [])):
                        out.write(json.dumps(record) + '\n')
                        ratio = f"{record['ratio']:8.2f} x torch" if record['ratio'] else ''
                        print(f"{direction:17}{record['kernel']:26}{record['median_us']:11.1f} us {ratio}", flush=True)
                    out.flush()  # a run that is cut off keeps what it timed


if __name__ == '__main__':
    main()
