#!/usr/bin/env python3
"""Writes torch/LAYER.txt, what PyTorch computes in float64 for small problems of a layer: python3 torch_vectors.py [LAYER...].

The build and the tests need the files alone. They were written with PyTorch 2.11 on a CPU. Recurrent layers: torch_recurrent.py.
"""
import torch
import torch.nn.functional as F

import vectors

torch.set_default_dtype(torch.float64)


def draw(*shape, low=-64, high=64):
    return torch.from_numpy(vectors.draw(*shape, low=low, high=high))


def needs_gradient(*tensors):
    return [tensor.clone().requires_grad_(True) for tensor in tensors]


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
    attention_by_formula(out)


def attention_by_formula(out):
    """Options that scaled_dot_product_attention has not, or hides LSE of: the formula, differentiated by autograd."""
    batch, queries, keys, width = 2, 4, 6, 5
    cases = {
        "value_dim": dict(value_dim=3),
        "softcap": dict(softcap=0.75),
        "slopes": dict(slopes=(2,)),
        "slopes_of_rows": dict(slopes=(batch, 2), causal=1, bottom_right=1),
        "bias_of_heads": dict(bias=(1, 2)),
        "bias_of_rows": dict(bias=(batch, 1)),
        "bias_of_all": dict(bias=(batch, 2)),
        "causal_bottom_right": dict(causal=1, bottom_right=1),
        "window_bottom_right": dict(left=1, right=1, bottom_right=1),
        "lse_gradient": dict(dlse=True),
        "all": dict(heads=4, value_dim=7, softcap=1.5, slopes=(batch, 4), bias=(1, 4), causal=1, bottom_right=1, left=3,
                    key_lengths=[6, 5], dlse=True),
    }
    for name, options in cases.items():
        heads, kv_heads, scale = options.get("heads", 2), 2, 0.5
        q, k = needs_gradient(draw(batch, queries, heads, width), draw(batch, keys, kv_heads, width))
        (v,) = needs_gradient(draw(batch, keys, kv_heads, options.get("value_dim", width)))
        d_o = draw(batch, queries, heads, v.shape[3])
        (bias,) = needs_gradient(draw(*options.get("bias", (1, 1)), queries, keys))
        slopes = draw(*options.get("slopes", (1,)), low=8, high=48)
        dlse = draw(batch, heads, queries) if "dlse" in options else torch.zeros(batch, heads, queries)
        lengths = torch.tensor(options.get("key_lengths", [keys] * batch))
        diagonal = (lengths - queries if "bottom_right" in options else 0 * lengths)[:, None, None, None]
        i, j = torch.arange(queries)[:, None] + diagonal, torch.arange(keys)
        seen = j < lengths[:, None, None, None]
        if "causal" in options:
            seen = seen & (j <= i)
        seen = seen & (j >= i - options.get("left", keys)) & (j <= i + options.get("right", keys))
        by_head = [t.transpose(1, 2).repeat_interleave(heads // t.shape[2], dim=1) for t in (q, k, v)]
        scores = scale * by_head[0] @ by_head[1].transpose(2, 3)
        if "softcap" in options:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        if "bias" in options:
            scores = scores + bias
        if "slopes" in options:
            scores = scores - (slopes if slopes.dim() == 2 else slopes[None])[:, :, None, None] * (i - j).abs()
        scores = scores.masked_fill(~seen, float("-inf"))
        o, lse = (scores.softmax(-1) @ by_head[2]).transpose(1, 2), scores.logsumexp(-1)
        ((o * d_o).sum() + (lse * dlse).sum()).backward()
        fields = dict(heads=heads, kv_heads=kv_heads, causal=0, scale=scale, q=q, d_o=d_o, o=o, lse=lse, dq=q.grad)
        fields.update({key: value for key, value in options.items() if isinstance(value, (int, float)) and key != "dlse"})
        shown_k, shown_v = k.detach().clone(), v.detach().clone()
        for row, length in enumerate(lengths):
            shown_k[row, length:] = shown_v[row, length:] = float("nan")
        fields.update(k=shown_k, v=shown_v, dk=k.grad, dv=v.grad)
        if "key_lengths" in options:
            fields["key_lengths"] = lengths
        if "bias" in options:
            fields.update(bias=bias, dbias=bias.grad)
        if "slopes" in options:
            fields["slopes"] = slopes
        if "dlse" in options:
            fields["dlse"] = dlse
        out.case(f"attention {name}", **fields)


def softmax(out):
    infinity, nan = float("inf"), float("nan")
    for name, function in {"plain": F.softmax, "log": F.log_softmax}.items():
        for masked in (False, True):
            shown = draw(4, 11, low=-1280, high=1280)
            if masked:
                shown[0, 3], shown[2, :7] = -infinity, -infinity
            x = needs_gradient(shown)[0]
            dy = draw(4, 11)
            y = function(x, dim=-1)
            y.backward(dy)
            out.case(f"softmax {name}{int(masked)}", log=int(name == "log"), x=x, dy=dy, y=y, dx=x.grad)
        shown = draw(7, 40)  # rows that end as NaN
        shown[0], shown[1, 7], shown[2, 39], shown[3] = -infinity, infinity, nan, -infinity
        shown[3, 0], shown[4, 1], shown[4, 2], shown[5] = nan, infinity, nan, infinity
        out.case(f"softmax {name}_special", log=int(name == "log"), x=shown, y=function(shown, dim=-1))


def pointwise(out):
    activations = {
        "relu": F.relu,
        "gelu_erf": F.gelu,
        "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
        "silu": F.silu,
    }
    for name, activation in activations.items():
        z = torch.cat([draw(50), draw(50, low=-640, high=640), torch.tensor([-1e30, -100.0, -20.0, 0.0, 20.0, 100.0, 1e30])])
        z = needs_gradient(z)[0]
        dy = draw(107)
        y = activation(z)
        y.backward(dy)
        out.case(f"pointwise {name}", z=z, dy=dy, y=y, dz=z.grad)


def embedding(out):
    shapes = {
        "plain": (-1, [[0, 2, 6], [2, 2, 3], [6, 0, 6], [1, 2, 0]]),
        "padding": (2, [[0, 2, 6], [2, 2, 3], [6, 0, 6], [1, 2, 0]]),
        "repeated": (-1, [4] * 70 + [0] + [4] * 30),
        "only_padding": (0, [0, 0, 0]),
        "one": (-1, 5),
    }
    for name, (padding, indices) in shapes.items():
        table = needs_gradient(draw(7, 5))[0]
        indices = torch.tensor(indices)
        dy = draw(*indices.shape, 5)
        y = F.embedding(indices, table, padding_idx=None if padding < 0 else padding)
        y.backward(dy)
        out.case(f"embedding {name}", padding=padding, indices=indices, table=table, dy=dy, y=y, dtable=table.grad)


def loss(out):
    some, class_two = [3, -100, 0, 8, 3, -100, 5, 3], [3, 2, 0, 8, 2, 2, 5, 3]
    settings = [(reduction, smoothing, -100, some) for reduction in ("sum", "mean") for smoothing in (0.0, 0.125, 1.0)]
    settings += [("sum", 0.125, 2, class_two), ("mean", 0.0, 2, class_two), ("sum", 0.125, -100, [-100] * 8)]
    for number, (reduction, smoothing, ignored, targets) in enumerate(settings):
        x, weight, bias = needs_gradient(draw(8, 5), draw(9, 5), draw(9))
        targets = torch.tensor(targets)
        value = F.cross_entropy(
            F.linear(x, weight, bias), targets, ignore_index=ignored, label_smoothing=smoothing, reduction=reduction
        )
        value.backward()
        out.case(
            f"loss {number}_{reduction}", smoothing=smoothing, mean=int(reduction == "mean"), ignored=ignored, targets=targets,
            count=int((targets != ignored).sum()), x=x, weight=weight, bias=bias, loss=value.reshape(1), dx=x.grad,
            dweight=weight.grad, dbias=bias.grad,
        )


def adam(out):
    steps = 6
    settings = {  # weight decay, largest norm, betas, epsilon
        "plain": (0.0, 0.0, (0.9, 0.999), 1e-8),
        "clip": (0.0, 1.0, (0.9, 0.999), 1e-8),
        "decay": (0.0625, 0.0, (0.9, 0.999), 1e-8),
        "decay_clip": (0.125, 2.0, (0.9, 0.999), 1e-8),
        "other_betas": (0.0, 0.0, (0.5, 0.9), 0.0078125),
        "no_momentum": (0.0, 3.0, (0.0, 0.99), 1e-8),
    }
    for name, (decay, clip, betas, epsilon) in settings.items():
        beta1, beta2, epsilon, rate = map(vectors.single, (*betas, epsilon, 0.01))
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
    vectors.write("torch", {f.__name__: f for f in (linear, attention, softmax, pointwise, embedding, loss, adam)})
