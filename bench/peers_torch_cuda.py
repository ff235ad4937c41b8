# PyTorch on a card beside everglow_cuda_bench: nn.Linear, nn.LSTM, nn.GRU, softmax, and attention through each backend of
# scaled_dot_product_attention and through FlexAttention. bench/peers_torch.py --device cuda:N uses it.
import datetime
import itertools
import json
import math
import statistics
import subprocess
import sys
import time

import torch

from torch_layers import PROBLEMS, Attention, Case, bytes_of, read_case, summarised

SAMPLES, LEAST_SAMPLES, WARMUP = 15, 5, 3
SLICE_SECONDS = 0.5
SAMPLE_US = 1000        # of a sample at least, as bench/measure.cpp has it
ROTATE_BYTES = 120 << 20
MOST_SETS = 32
MOST_SCORES = 1 << 31   # of the backend that keeps them in memory


def fault(device):
    """What is missing; empty: nothing."""
    if not device.startswith('cuda'):
        return f'--device: expected cpu or cuda:N, got "{device}"'
    if not torch.version.cuda:
        return f'--device {device}: this PyTorch ({torch.__version__}) was built without CUDA'
    if not torch.cuda.is_available() or torch.device(device).index not in (None, *range(torch.cuda.device_count())):
        return f'--device {device}: PyTorch sees {torch.cuda.device_count()} cards'
    return ''


class Backend(Attention):
    """Attention through one backend, which raises RuntimeError where it does not take the problem."""
    backend = None

    def forward(self):
        with torch.nn.attention.sdpa_kernel([self.backend]):
            return super().forward()


def sdpa(name):
    return type(name, (Backend,), {'backend': getattr(torch.nn.attention.SDPBackend, name)})


class Flex(Attention):
    """FlexAttention, compiled for the one shape at hand: its dynamic shapes are several times slower."""

    def __init__(self, c):
        super().__init__(c)
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        torch._dynamo.reset()
        self.mask = None
        if self.options['is_causal']:
            def causal(_batch, _head, query, key):
                return query >= key
            self.mask = create_block_mask(causal, None, None, c.size('queries'), c.size('keys'), device=c.device)
        self.attend = torch.compile(flex_attention, dynamic=False)
        self.grouped = self.options.get('enable_gqa', False)

    def forward(self):
        q, k, v = (part.transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.attend(q, k, v, block_mask=self.mask, enable_gqa=self.grouped)


def variants(layer, fields):
    """Name and class of each way that PyTorch has."""
    if layer == 'recurrent':
        return {f"torch.{fields.get('cell', 'lstm')}": PROBLEMS[layer]}
    if layer != 'attention':
        return {f'torch.{layer}': PROBLEMS[layer]}
    out = {'torch.sdpa_flash': sdpa('FLASH_ATTENTION'), 'torch.sdpa_efficient': sdpa('EFFICIENT_ATTENTION'),
           'torch.sdpa_cudnn': sdpa('CUDNN_ATTENTION'), 'torch.flex': Flex}
    if math.prod(int(fields[key]) for key in ('batch', 'heads', 'queries', 'keys')) <= MOST_SCORES:
        out['torch.sdpa_math'] = sdpa('MATH')
    return out


class Side:
    """One way of PyTorch on sets of tensors that runs take in turn; a backward run goes through a graph that is kept."""

    def __init__(self, kind, case, training):
        torch.manual_seed(1)
        first = kind(case)
        wanted = min(MOST_SETS, max(2, math.ceil(ROTATE_BYTES / bytes_of(first))))
        self.sets = [first, *(kind(case) for _ in range(wanted - 1))]
        self.training, self.outputs = training, {}

    def run(self, direction, number):
        one = self.sets[number]
        if direction == 'forward':
            with torch.inference_mode(not self.training):
                one.forward()
        else:
            torch.autograd.grad(self.outputs[number], one.leaves(), one.dy, retain_graph=True)

    def slice(self, direction):
        """Samples in microseconds, each the mean of as many runs as take a millisecond."""
        self.outputs = {number: one.forward() for number, one in enumerate(self.sets)} if direction == 'backward' else {}
        turns = itertools.cycle(range(len(self.sets)))

        def sample(runs):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(runs):
                self.run(direction, next(turns))
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) * 1000 / runs
        once = [sample(1) for _ in range(WARMUP)][-1]
        runs, start, out = max(1, min(200, int(SAMPLE_US / max(once, 1)))), time.perf_counter(), []
        while len(out) < LEAST_SAMPLES or (len(out) < SAMPLES and time.perf_counter() - start < SLICE_SECONDS):
            out.append(sample(runs))
        self.outputs = {}
        return out


def ours(chosen, line):
    """The records of one start of our program: our rows and the peers in its process, forward and backward."""
    command = [chosen.program, '-', '--case', line, '--device', chosen.device, '--seconds', '0', '--json', '--peers']
    for option, values in (('--kernel', chosen.kernel), ('--direction', [chosen.direction] if chosen.direction else [])):
        command += [word for value in values for word in (option, value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f'peers_torch.py: {" ".join(command)} ended with {done.returncode}')
    found = [json.loads(text) for text in done.stdout.splitlines()]
    return [record for record in found if record['direction'] in ('forward', 'backward')]


def sides(line, device, wanted):
    """Each way of PyTorch that takes the case, ready to run; of the wanted ones where some are named."""
    layer, fields = read_case(line)
    out = {}
    for name, kind in variants(layer, fields).items():
        if wanted and name.removeprefix('torch.') not in wanted:
            continue
        try:
            side = Side(kind, Case(fields, device), fields.get('training', '1') == '1')
            side.sets[0].forward()
            torch.cuda.synchronize()
            out[name] = side
        except (RuntimeError, NotImplementedError, torch._dynamo.exc.TorchDynamoException) as error:
            print(f'{name} does not take it: {str(error).strip().splitlines()[0][:100]}')
    return out


def compare(chosen, line):
    """Records of a case: in each round a start of ours, then a slice of each way of PyTorch."""
    found, theirs, ways = {}, {}, None
    for _ in range(chosen.rounds):
        for record in ours(chosen, line):
            found.setdefault((record['direction'], record['kernel']), (record, []))[1].extend(record['samples_us'])
        ways = sides(line, chosen.device, chosen.peer) if ways is None else ways
        for name, side in list(ways.items()):
            try:
                for direction in dict.fromkeys(key[0] for key in found):
                    theirs.setdefault((direction, name), []).extend(side.slice(direction))
            except RuntimeError as error:
                print(f'{name} does not run it: {str(error).strip().splitlines()[0][:100]}')
                del ways[name]
    ways = None
    torch.cuda.empty_cache()
    for direction in dict.fromkeys(key[0] for key in found):
        peers = {name: samples for (way, name), samples in theirs.items() if way == direction}
        best = min(((name, statistics.median(samples)) for name, samples in peers.items()), key=lambda one: one[1], default=None)
        mine = [(record, samples) for (way, _), (record, samples) in found.items() if way == direction]
        yield from (summarised(record, samples, best) for record, samples in mine)
        for name, samples in peers.items():
            yield summarised(dict(mine[0][0], kernel=name, chosen=False, predicted_us=None, version=torch.__version__, warmup=WARMUP,
                                  date=datetime.datetime.now(datetime.timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ')), samples, None)
