# The layers of the case lines in PyTorch: one set of tensors each, on the CPU or on a card. bench/peers_torch.py times them.
import statistics

import torch

DTYPES = {'f32': torch.float32, 'f16': torch.float16, 'bf16': torch.bfloat16}
ACTIVATIONS = {'none': lambda z: z, 'relu': torch.relu, 'silu': torch.nn.functional.silu,
               'gelu_erf': torch.nn.functional.gelu,
               'gelu_tanh': lambda z: torch.nn.functional.gelu(z, approximate='tanh')}


def read_case(line):
    layer, *fields = line.split()
    return layer, dict(field.split('=') for field in fields)


class Case:
    """The fields of a case line, and tensors of its dtype."""

    def __init__(self, fields, device='cpu'):
        self.fields, self.device = fields, device
        self.dtype = DTYPES[fields.get('dtype', 'f32')]

    def size(self, key, otherwise=1):
        return int(self.fields.get(key, otherwise))

    def uniform(self, *shape, low=-1.0, high=1.0):
        return (torch.rand(*shape, device=self.device) * (high - low) + low).to(self.dtype)


class Linear:
    """One set of tensors; forward() returns the output, and leaves() are what gets a gradient."""

    def __init__(self, c):
        self.x = c.uniform(c.size('batch'), c.size('inputs')).requires_grad_()
        self.layer = torch.nn.Linear(c.size('inputs'), c.size('outputs'), bias=c.size('bias') != 0, dtype=c.dtype,
                                     device=c.device)
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
                          dropout=float(c.fields.get('dropout', 0)), dtype=c.dtype, device=c.device, **more)
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


def bytes_of(one):
    # An input, its gradient, an output and its gradient.
    return 2 * sum(part.numel() * part.element_size() for part in (*one.leaves(), one.dy))


def summarised(record, samples, ref):
    """A record with these samples, and the ratio to a reference (name, median) or None."""
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
