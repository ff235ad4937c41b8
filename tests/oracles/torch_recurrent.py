#!/usr/bin/env python3
"""Writes torch/recurrent.txt, what PyTorch computes in float64 for small recurrent layers: python3 torch_recurrent.py.

Every option that torch.nn has: cells, layers, both directions, projection, bias, packed sequences, states given or not; and resets,
as sequences one after the other. A GRU that resets before the product is not in torch.nn: its case differentiates the formula by
autograd. The form is told in vectors.py. Inputs are multiples of 1/64 of at most 6 bits, so 16-bit types hold them exactly.
"""
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import vectors
from torch_vectors import needs_gradient

STEPS, BATCH, INPUTS = 4, 3, 3


def draw(*shape, low=-63, high=63):
    return torch.from_numpy(vectors.draw(*shape, low=low, high=high))


class ResetBefore(torch.nn.Module):
    """h = (1 - z) n + z h with n = tanh(W x + b + R (r h) + b'), the first form of the GRU (Cho et al. 2014)."""

    num_layers, bidirectional = 1, False

    def __init__(self, inputs, hidden):
        super().__init__()
        self.input_size, self.hidden_size = inputs, hidden
        for name, shape in (("weight_ih", (3 * hidden, inputs)), ("weight_hh", (3 * hidden, hidden)), ("bias_ih", (3 * hidden,)),
                            ("bias_hh", (3 * hidden,))):
            setattr(self, name + "_l0", torch.nn.Parameter(torch.zeros(shape)))

    def forward(self, x, h):
        h, rows = h[0], []
        r_matrix, z_matrix, n_matrix = self.weight_hh_l0.chunk(3)
        r_bias, z_bias, n_bias = self.bias_hh_l0.chunk(3)
        for step in x:
            r_in, z_in, n_in = (step @ self.weight_ih_l0.T + self.bias_ih_l0).chunk(3, dim=1)
            r = torch.sigmoid(r_in + h @ r_matrix.T + r_bias)
            z = torch.sigmoid(z_in + h @ z_matrix.T + z_bias)
            n = torch.tanh(n_in + (r * h) @ n_matrix.T + n_bias)
            h = (1 - z) * n + z * h
            rows.append(h)
        return torch.stack(rows), h[None]


def run(layer, x, states, lengths, cut):
    """y and the final states; with `cut` the steps from there on begin with states of zero."""
    given = states if len(states) > 1 else states[0] if states else None
    call = lambda part, state: layer(part) if state is None else layer(part, state)
    if cut is not None:
        first, end = call(x[:cut], given)
        zeros = tuple(torch.zeros_like(s) for s in states)
        second, end = call(x[cut:], zeros if len(zeros) > 1 else zeros[0])
        return torch.cat([first, second]), end
    if lengths is None:
        return call(x, given)
    y, end = call(pack_padded_sequence(x, lengths, enforce_sorted=False), given)
    return pad_packed_sequence(y, total_length=STEPS)[0], end


def sequence(out, case, layer, lengths=None, cut=None, with_states=True):
    is_lstm, directions = isinstance(layer, torch.nn.LSTM), 2 if layer.bidirectional else 1
    outputs = getattr(layer, "proj_size", 0) or layer.hidden_size
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(draw(*parameter.shape, low=-37, high=37))
    parts = layer.num_layers * directions
    shapes = [(parts, BATCH, outputs)] + ([(parts, BATCH, layer.hidden_size)] if is_lstm else [])
    (x,) = needs_gradient(draw(STEPS, BATCH, layer.input_size))
    states = needs_gradient(*[draw(*shape) for shape in shapes]) if with_states else []
    dy, gradients = draw(STEPS, BATCH, directions * outputs), [draw(*shape) for shape in shapes] if with_states else []
    y, end = run(layer, x, tuple(states), lengths, cut)
    end = end if is_lstm else (end,)
    ((y * dy).sum() + sum((value * gradient).sum() for value, gradient in zip(end, gradients))).backward()
    fields = dict(directions=directions, layers=layer.num_layers, hidden=layer.hidden_size)
    for name, value, index in (("h", end[0], 0), ("c", end[1] if is_lstm else None, 1)):
        if value is None:
            continue
        fields[name + "n"] = value
        if with_states:
            fields.update({f"{name}0": states[index], f"d{name}n": gradients[index], f"d{name}0": states[index].grad})
    if lengths is not None:
        fields["lengths"] = torch.tensor(lengths)
    if cut is not None:
        fields["resets"] = (torch.arange(STEPS)[:, None] == cut).expand(STEPS, BATCH).long()
    shown_x, shown_dy = x.detach().clone(), dy.clone()
    for row, length in enumerate(lengths or []):  # padding must not matter
        shown_x[length:, row] = shown_dy[length:, row] = float("nan")
    fields.update(x=shown_x, dy=shown_dy, y=y, dx=x.grad)
    for part in range(parts):
        suffix = f"_l{part // directions}" + ("_reverse" if part % directions else "")
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"):
            parameter = getattr(layer, name + suffix, None)
            if parameter is not None:
                short = name.replace("weight", "w").replace("bias", "b")
                fields.update({f"{short}.{part}": parameter, f"d{short}.{part}": parameter.grad})
    out.case(f"recurrent {case}", **fields)


def recurrent(out):
    lengths, both = [3, 4, 1], dict(bidirectional=True)
    kinds = {
        "lstm": (torch.nn.LSTM, {}),
        "gru": (torch.nn.GRU, {}),
        "tanh": (torch.nn.RNN, {}),
        "relu": (torch.nn.RNN, dict(nonlinearity="relu")),
    }
    for cell, (kind, options) in kinds.items():
        sequence(out, f"{cell} plain", kind(INPUTS, 3, **options))
        sequence(out, f"{cell} bare", kind(INPUTS, 3, bias=False, **options), with_states=False)
        sequence(out, f"{cell} lengths", kind(INPUTS, 3, **both, **options), lengths)
        sequence(out, f"{cell} stack", kind(INPUTS, 3, num_layers=2, **both, **options), lengths)
        sequence(out, f"{cell} resets", kind(INPUTS, 3, **options), cut=2)
    sequence(out, "lstm projection", torch.nn.LSTM(INPUTS, 4, proj_size=2))
    sequence(out, "lstm projection bare", torch.nn.LSTM(INPUTS, 4, proj_size=3, bias=False, **both), with_states=False)
    sequence(out, "lstm projection stack", torch.nn.LSTM(INPUTS, 4, proj_size=3, num_layers=2, **both), lengths)
    sequence(out, "gru_reset_before plain", ResetBefore(INPUTS, 3))
    sequence(out, "gru_reset_before resets", ResetBefore(INPUTS, 3), cut=3)


if __name__ == "__main__":
    vectors.write("torch", {"recurrent": recurrent})
