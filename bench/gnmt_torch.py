# The translation model of include/everglow/gnmt/model.hpp written in PyTorch, as a peer of `everglow bench gnmt`: the same wiring,
# sizes and batches, clipping and Adam. bench/peers_torch.py times it.
import functools
import random
import subprocess

import torch
from torch import nn

PAD, BOS, EOS, SPECIAL = 0, 2, 3, 4
BATCHES, DRAWN_BATCHES, STRIDE, LIMIT = 4, 32, 7919, 1_000_000  # bench/gnmt.cpp has the same


@functools.lru_cache(maxsize=1)
def number_words(program):
    """Source and target of every number as lists of words."""
    pairs = []
    with subprocess.Popen((program, 'corpus'), stdout=subprocess.PIPE, text=True, encoding='utf-8') as process:
        for line in process.stdout:
            pairs.append(line.rstrip('\n'))
    if process.returncode != 0 or len(pairs) != LIMIT:
        raise RuntimeError(f'{program} corpus: expected {LIMIT} lines, got {len(pairs)}')
    return pairs


def number_batches(program, rows, seed):
    drawn = DRAWN_BATCHES * rows
    lines = number_words(program)
    chosen = [lines[(seed + i * STRIDE) % LIMIT] for i in range(drawn)]
    pairs = [tuple(side.replace('-', ' ').split(' ') for side in line.split('\t')) for line in chosen]
    pairs.sort(key=lambda pair: len(pair[0]))
    words = sorted({word for pair in pairs for side in pair for word in side}, key=lambda word: word.encode())
    numbers = {word: SPECIAL + i for i, word in enumerate(words)}
    coded = [tuple([numbers[word] for word in side] for side in pair) for pair in pairs]
    starts = [(2 * b + 1) * drawn // (2 * BATCHES) - rows // 2 for b in range(BATCHES)]
    return [coded[start:start + rows] for start in starts]


def random_batches(rows, length, vocabulary):
    def side():
        return [random.randrange(SPECIAL, vocabulary) for _ in range(length)]
    return [[(side(), side()) for _ in range(rows)] for _ in range(BATCHES)]


class Batch:
    """Time-major and padded, as gnmt::Batch."""

    def __init__(self, pairs):
        def padded(rows):
            longest = max(len(row) for row in rows)
            return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows]).t().contiguous()
        sources = [source + [EOS] for source, _ in pairs]
        self.source, self.decoder_input = padded(sources), padded([[BOS] + target for _, target in pairs])
        self.targets = padded([target + [EOS] for _, target in pairs])
        self.lengths = torch.tensor([len(source) for source in sources])
        self.seen = (self.source != PAD).t()[:, None, None, :]  # [B, 1, 1, S]
        self.target_tokens = sum(len(target) + 1 for _, target in pairs)
        self.tokens, self.pairs = int(self.lengths.sum()) + self.target_tokens, len(pairs)


class Translator(nn.Module):
    def __init__(self, hidden, layers, vocabulary, dropout):
        super().__init__()
        self.heads = hidden // 64 if hidden >= 128 else 1
        self.embedding, self.drop = nn.Embedding(vocabulary, hidden), nn.Dropout(dropout)
        self.first = nn.LSTM(hidden, hidden, bidirectional=True)
        self.above = nn.ModuleList(nn.LSTM(hidden * (2 if i == 0 else 1), hidden) for i in range(layers - 1))
        self.projection = nn.Linear(2 * hidden, hidden) if layers == 1 else None
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key_value = nn.Linear(hidden, 2 * hidden, bias=False)
        self.decoder = nn.LSTM(hidden, hidden)
        self.decoder_above = nn.ModuleList(nn.LSTM(2 * hidden, hidden) for _ in range(layers - 1))
        self.classifier = nn.Linear(hidden * (2 if layers == 1 else 1), vocabulary)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def encode(self, batch):
        x = self.drop(self.embedding(batch.source))
        packed = nn.utils.rnn.pack_padded_sequence(x, batch.lengths, enforce_sorted=False)
        x = nn.utils.rnn.pad_packed_sequence(self.first(packed)[0])[0]
        if self.projection is not None:
            return self.projection(x)
        for i, layer in enumerate(self.above):
            y = layer(self.drop(x))[0]  # padding stands at the end, so that it reaches nothing
            x = y if i == 0 else x + y
        return x

    def attend(self, x, top, seen):
        def by_head(y):  # [T, B, H] -> [B, heads, T, H / heads]
            return y.unflatten(2, (self.heads, -1)).permute(1, 2, 0, 3)
        keys, values = self.key_value(top).chunk(2, dim=2)
        found = nn.functional.scaled_dot_product_attention(by_head(self.query(x)), by_head(keys), by_head(values), attn_mask=seen)
        return found.permute(2, 0, 1, 3).flatten(2)

    def forward(self, batch):
        """The sum of the smoothed losses of the target tokens."""
        top = self.encode(batch)
        x = self.decoder(self.drop(self.embedding(batch.decoder_input)))[0]
        context = self.attend(x, top, batch.seen)
        for i, layer in enumerate(self.decoder_above):
            y = layer(torch.cat((self.drop(x), context), 2))[0]
            x = y if i == 0 else x + y
        logits = self.classifier(x if self.decoder_above else torch.cat((x, context), 2))
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=PAD, label_smoothing=0.1,
                                           reduction='sum')


class Gnmt:
    """A peer of a case: a run takes one of the random batches, or all of number words."""

    def __init__(self, fields, program, seed=1):
        def size(key):
            return int(fields[key])
        torch.manual_seed(seed)
        self.model = Translator(size('hidden'), size('layers'), size('vocabulary'), float(fields.get('dropout', 0.2)))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4, fused=True)
        numbers = fields.get('text') == 'numbers'
        pairs = number_batches(program, size('batch'), seed) if numbers else random_batches(size('batch'), size('length'),
                                                                                            size('vocabulary'))
        batches = [Batch(one) for one in pairs]
        self.runs = [batches] if numbers else [[one] for one in batches]
        self.tokens, self.pairs = (sum(getattr(one, what) for one in self.runs[0]) for what in ('tokens', 'pairs'))

    def train(self, run):
        self.model.train()
        for batch in self.runs[run % len(self.runs)]:
            self.optimizer.zero_grad(set_to_none=True)
            (self.model(batch) / batch.target_tokens).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.optimizer.step()

    def evaluate(self, run):
        self.model.eval()
        with torch.inference_mode():
            return sum(float(self.model(batch)) for batch in self.runs[run % len(self.runs)])
