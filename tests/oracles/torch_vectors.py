#!/usr/bin/env python3
"""Writes torch_vectors.txt, what PyTorch computes in float64 for small problems of each layer: python3 torch_vectors.py.

The build and the tests need the file alone. It was written with PyTorch 2.11 on a CPU. All inputs are multiples of 1/64, so f32
holds them exactly. A case opens with `case NAME`, then come `number NAME VALUE` and `tensor NAME SIZES...` with its values below.
"""
import pathlib

import numpy
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.set_default_dtype(torch.float64)
random = numpy.random.default_rng(20240607)


def draw(*shape, low=-64, high=64):
    return torch.from_numpy(random.integers(low, high + 1, shape) / 64.0)


def needs_gradient(*tensors):
    return [tensor.clone().requires_grad_(True) for tensor in tensors]


class Writer:
    def __init__(self):
        self.lines = []

    def case(self, name, **fields):
        self.lines.append(f"case {name}")
        for key, value in fields.items():
            if not isinstance(value, torch.Tensor):
                self.lines.append(f"number {key} {value:.17g}")
                continue
            self.lines.append(" ".join(["tensor", key, *map(str, value.shape)]))
            flat = value.detach().flatten().tolist()
            for start in range(0, len(flat), 6):
                self.lines.append(" ".join(f"{v:.17g}" for v in flat[start : start + 6]))


def linear(out):
    activations = {
        "none": lambda z: z,
        "relu": F.relu,
        "gelu_erf": F.gelu,
        "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
        "silu": F.silu,
    }
    for name, activation in activations.items():
        x, weight, bias = needs_gradient(draw(5, 7, low=-128, high=128), draw(6, 7), draw(6))
        dy = draw(5, 6)
        z = F.linear(x, weight, bias)
        y = activation(z)
        y.backward(dy)
        out.case(f"linear {name}", x=x, weight=weight, bias=bias, dy=dy, z=z, y=y, dx=x.grad, dweight=weight.grad, dbias=bias.grad)


def lstm(out):
    steps, batch, inputs, hidden = 6, 4, 5, 3
    for name, lengths in {"plain": None, "lengths": [6, 2, 5, 1]}.items():
        for directions in (1, 2):
            layer = torch.nn.LSTM(inputs, hidden, bidirectional=directions == 2)
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.copy_(draw(*parameter.shape, low=-37, high=37))
            state = (directions, batch, hidden)
            x, h0, c0 = needs_gradient(draw(steps, batch, inputs), draw(*state), draw(*state))
            dy, dhn, dcn = draw(steps, batch, directions * hidden), draw(*state), draw(*state)
            if lengths is None:
                y, (hn, cn) = layer(x, (h0, c0))
            else:
                packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
                packed_y, (hn, cn) = layer(packed, (h0, c0))
                y, _ = pad_packed_sequence(packed_y, total_length=steps)
            ((y * dy).sum() + (hn * dhn).sum() + (cn * dcn).sum()).backward()
            fields = dict(directions=directions, lengths=torch.tensor(lengths or [steps] * batch), h0=h0, c0=c0, dhn=dhn, dcn=dcn)
            shown_x, shown_dy = x.detach().clone(), dy.clone()
            for row, length in enumerate(lengths or []):  # padding must not matter
                shown_x[length:, row] = shown_dy[length:, row] = float("nan")
            fields.update(x=shown_x, dy=shown_dy, y=y, hn=hn, cn=cn, dx=x.grad, dh0=h0.grad, dc0=c0.grad)
            for direction, suffix in enumerate(["", "_reverse"][:directions]):
                for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    parameter = getattr(layer, f"{part}_l0{suffix}")
                    short = part.replace("weight", "w").replace("bias", "b")
                    fields[f"{short}.{direction}"] = parameter
                    fields[f"d{short}.{direction}"] = parameter.grad
            out.case(f"lstm {name}{directions}", **fields)


def attention(out):
    batch, queries, keys, width = 2, 4, 6, 16
    # name: query heads, key heads, causal, key lengths, bias, scale
    cases = {
        "plain": (2, 2, False, None, False, 0.25),
        "key_mask": (2, 2, False, [6, 3], False, 0.25),
        "causal_top_left": (2, 2, True, None, False, 0.25),
        "bias": (2, 2, False, None, True, 0.25),
        "grouped_causal": (4, 2, True, None, False, 0.5),
        "grouped_key_mask": (6, 2, False, [1, 5], False, 0.25),
    }
    for name, (heads, kv_heads, causal, lengths, with_bias, scale) in cases.items():
        q, k, v = needs_gradient(
            draw(batch, queries, heads, width), draw(batch, keys, kv_heads, width), draw(batch, keys, kv_heads, width)
        )
        d_o = draw(batch, queries, heads, width)
        bias = needs_gradient(draw(1, 1, queries, keys))[0]
        seen = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
        if lengths is not None:
            seen = seen & (torch.arange(keys) < torch.tensor(lengths)[:, None])[:, None, None, :]
        if causal:
            seen = seen & torch.ones(queries, keys, dtype=torch.bool).tril()
        mask = bias if with_bias else None if lengths is None else seen
        heads_first = [t.transpose(1, 2) for t in (q, k, v)]
        o = F.scaled_dot_product_attention(
            *heads_first, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=heads != kv_heads
        ).transpose(1, 2)
        o.backward(d_o)
        repeated = heads_first[1].repeat_interleave(heads // kv_heads, dim=1)
        scores = scale * heads_first[0] @ repeated.transpose(2, 3) + (bias if with_bias else 0)
        lse = scores.masked_fill(~seen, float("-inf")).logsumexp(-1)
        fields = dict(heads=heads, kv_heads=kv_heads, causal=int(causal), scale=scale, q=q, d_o=d_o, o=o, lse=lse)
        shown_k, shown_v = k.detach().clone(), v.detach().clone()
        for row, length in enumerate(lengths or []):
            shown_k[row, length:] = shown_v[row, length:] = float("nan")
        fields.update(k=shown_k, v=shown_v, dq=q.grad, dk=k.grad, dv=v.grad)
        if lengths is not None:
            fields["key_lengths"] = torch.tensor(lengths)
        if with_bias:
            fields.update(bias=bias, dbias=bias.grad)
        out.case(f"attention {name}", **fields)


def softmax(out):
    for name, function in {"plain": F.softmax, "log": F.log_softmax}.items():
        for masked in (False, True):
            shown = draw(4, 11, low=-1280, high=1280)
            if masked and name == "plain":
                shown[0, 3], shown[2, :7] = float("-inf"), float("-inf")
            x = needs_gradient(shown)[0]
            dy = draw(4, 11)
            y = function(x, dim=-1)
            y.backward(dy)
            out.case(f"softmax {name}{int(masked)}", log=int(name == "log"), x=x, dy=dy, y=y, dx=x.grad)


def embedding(out):
    for name, padding in {"plain": -1, "padding": 2}.items():
        table = needs_gradient(draw(7, 5))[0]
        indices = torch.tensor([[0, 2, 6], [2, 2, 3], [6, 0, 6], [1, 2, 0]])
        dy = draw(4, 3, 5)
        y = F.embedding(indices, table, padding_idx=None if padding < 0 else padding)
        y.backward(dy)
        out.case(f"embedding {name}", padding=padding, indices=indices, table=table, dy=dy, y=y, dtable=table.grad)


def loss(out):
    for reduction in ("sum", "mean"):
        for smoothing in (0.0, 0.125):
            x, weight, bias = needs_gradient(draw(8, 5), draw(9, 5), draw(9))
            targets = torch.tensor([3, -100, 0, 8, 3, -100, 5, 3])
            value = F.cross_entropy(
                F.linear(x, weight, bias), targets, ignore_index=-100, label_smoothing=smoothing, reduction=reduction
            )
            value.backward()
            out.case(
                f"loss {reduction}{smoothing}", smoothing=smoothing, mean=int(reduction == "mean"), targets=targets,
                count=int((targets >= 0).sum()), x=x, weight=weight, bias=bias, loss=value.reshape(1), dx=x.grad,
                dweight=weight.grad, dbias=bias.grad,
            )


def adam(out):
    steps, single = 6, lambda value: float(numpy.float32(value))
    beta1, beta2, epsilon, rate = single(0.9), single(0.999), single(1e-8), single(0.01)
    for name, (decay, clip) in {"plain": (0.0, 0.0), "clip": (0.0, 1.0), "decay_clip": (0.125, 2.0)}.items():
        parameters = needs_gradient(draw(9, 5), draw(13))
        fields = dict(beta1=beta1, beta2=beta2, epsilon=epsilon, rate=rate, decay=decay, clip=clip, steps=steps)
        fields.update({"start.0": parameters[0].detach().clone(), "start.1": parameters[1].detach().clone()})
        optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(beta1, beta2), eps=epsilon, weight_decay=decay)
        for step in range(steps):
            for index, parameter in enumerate(parameters):
                parameter.grad = draw(*parameter.shape, low=-128, high=128)
                fields[f"gradient.{step}.{index}"] = parameter.grad.clone()
            norm = torch.nn.utils.clip_grad_norm_(parameters, clip if clip > 0 else float("inf"))
            fields[f"norm.{step}"] = float(norm)
            optimizer.step()
        for index, parameter in enumerate(parameters):
            state = optimizer.state[parameter]
            fields.update({f"end.{index}": parameter, f"m.{index}": state["exp_avg"], f"v.{index}": state["exp_avg_sq"]})
        out.case(f"adam {name}", **fields)


if __name__ == "__main__":
    writer = Writer()
    for layer in (linear, lstm, attention, softmax, embedding, loss, adam):
        layer(writer)
    path = pathlib.Path(__file__).with_name("torch_vectors.txt")
    path.write_text("\n".join(writer.lines) + "\n")
    print(f"{path.name}: {sum(line.startswith('case') for line in writer.lines)} cases, {path.stat().st_size} bytes, "
          f"PyTorch {torch.__version__}")
