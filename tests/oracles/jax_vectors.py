#!/usr/bin/env python3
"""Writes jax/LAYER.txt, what JAX computes in float64 for small problems of a layer: python3 jax_vectors.py [LAYER...].

The build and the tests need the files alone. They were written with JAX 0.10 on a CPU. JAX has no GRU: it is written here as the
papers do, with lax.scan, and differentiated by JAX.
"""
import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
from jax.experimental import rnn

import vectors


def draw(*shape, low=-63, high=63):
    return jnp.asarray(vectors.draw(*shape, low=low, high=high))


def pulled_back(function, inputs, dy):
    """The result and the gradients of all inputs."""
    y, pull = jax.vjp(function, *inputs)
    return y, pull(dy)


def softmax(out):
    for log, function in enumerate((jax.nn.softmax, jax.nn.log_softmax)):
        for columns in (1, 11, 70):
            x, dy = draw(4, columns, low=-640, high=640), draw(4, columns)
            y, (dx,) = pulled_back(function, (x,), dy)
            out.case(f"softmax {function.__name__}_{columns}", log=log, x=x, dy=dy, y=y, dx=dx)
    x, dy = draw(3, 21), draw(3, 21)
    x = x.at[0, 4].set(-jnp.inf).at[2, 1:].set(-jnp.inf)
    y, (dx,) = pulled_back(jax.nn.softmax, (x,), dy)
    out.case("softmax masked", log=0, x=x, dy=dy, y=y, dx=dx)


def pointwise(out):
    activations = {
        "relu": jax.nn.relu,
        "gelu_erf": lambda z: jax.nn.gelu(z, approximate=False),
        "gelu_tanh": lambda z: jax.nn.gelu(z, approximate=True),
        "silu": jax.nn.silu,
    }
    for name, activation in activations.items():
        z = jnp.concatenate([draw(50), draw(50, low=-640, high=640), jnp.array([-100.0, -20.0, 0.0, 20.0, 100.0])])
        dy = draw(*z.shape)
        y, (dz,) = pulled_back(activation, (z,), dy)
        out.case(f"pointwise {name}", z=z, dy=dy, y=y, dz=dz)


def loss(out):
    rows, inputs, classes = 8, 5, 9
    for number, (mean, smoothing, ignored) in enumerate([(0, 0.0, -1), (0, 0.125, 3), (1, 0.25, 3), (1, 0.0, 3)]):
        targets = jnp.array([3, 1, 0, 8, 3, 7, 5, 3])
        counted = targets != ignored

        def value(x, weight, bias):
            logs = jax.nn.log_softmax(x @ weight.T + bias)
            labels = jax.nn.one_hot(targets, classes) * (1 - smoothing) + smoothing / classes
            total = -jnp.sum(jnp.where(counted[:, None], labels * logs, 0))
            return total / jnp.sum(counted) if mean else total

        x, weight, bias = draw(rows, inputs), draw(classes, inputs), draw(classes)
        result, (dx, dweight, dbias) = pulled_back(value, (x, weight, bias), 1.0)
        out.case(
            f"loss {number}", smoothing=smoothing, mean=mean, ignored=ignored, targets=targets, count=int(jnp.sum(counted)), x=x,
            weight=weight, bias=bias, loss=result.reshape(1), dx=dx, dweight=dweight, dbias=dbias,
        )


def attention(out):
    batch, queries, keys, width = 2, 5, 7, 4
    cases = {  # heads, kv_heads, options
        "plain": (2, 2, {}),
        "scale": (2, 2, dict(scale=0.25)),
        "causal": (2, 2, dict(is_causal=True)),
        "bias": (2, 2, dict(bias=True)),
        "window": (2, 2, dict(local_window_size=(2, 1))),
        "causal_window": (2, 2, dict(is_causal=True, local_window_size=(1, 0))),
        "lengths": (2, 2, dict(query_seq_lengths=[3, 5], key_value_seq_lengths=[7, 2])),
        "grouped": (4, 2, {}),
        "multi_query_causal": (3, 1, dict(is_causal=True)),
        "grouped_bias_lengths": (4, 2, dict(bias=True, key_value_seq_lengths=[4, 6])),
    }
    for name, (heads, kv_heads, options) in cases.items():
        given = dict(options)
        q, k, v = draw(batch, queries, heads, width), draw(batch, keys, kv_heads, width), draw(batch, keys, kv_heads, width)
        inputs = (q, k, v) + ((draw(1, 1, queries, keys),) if given.pop("bias", False) else ())
        d_o = draw(batch, queries, heads, width)
        for lengths in ("query_seq_lengths", "key_value_seq_lengths"):
            if lengths in given:
                given[lengths] = jnp.array(given[lengths], dtype=jnp.int32)
        lengths = given.get("query_seq_lengths", jnp.array([queries] * batch))  # rows past a length are no part of the result
        rows = jnp.arange(queries)[None, :, None, None] < lengths[:, None, None, None]
        d_o = jnp.where(rows, d_o, 0)
        o, gradients = pulled_back(lambda *args: jax.nn.dot_product_attention(*args, **given), inputs, d_o)
        o = jnp.where(rows, o, 0)
        _, lse = jax.nn.dot_product_attention(*inputs, return_residual=True, **given)
        lse = jnp.where(rows[..., 0], lse, -jnp.inf).transpose(0, 2, 1)
        fields = dict(heads=heads, kv_heads=kv_heads, causal=int(options.get("is_causal", False)), q=q, k=k, v=v, d_o=d_o, o=o, lse=lse)
        fields.update(scale=options.get("scale", 0.5), dq=gradients[0], dk=gradients[1], dv=gradients[2])
        if "local_window_size" in options:
            fields.update(left=options["local_window_size"][0], right=options["local_window_size"][1])
        for key, short in (("query_seq_lengths", "query_lengths"), ("key_value_seq_lengths", "key_lengths")):
            if key in given:
                fields[short] = given[key]
        if len(inputs) > 3:
            fields.update(bias=inputs[3], dbias=gradients[3])
        out.case(f"attention {name}", **fields)


def gru(x, h0, w_ih, w_hh, b_ih, b_hh, reset_after):
    """Steps of Cho et al. 2014 (the reset gate before the product), or as cuDNN and PyTorch do (after it); gates r, z, n."""
    hidden = h0.shape[-1]

    def step(h, x_t):
        from_x, from_h = x_t @ w_ih.T + b_ih, h @ w_hh.T + b_hh
        reset, update = jnp.split(jax.nn.sigmoid(from_x[:, : 2 * hidden] + from_h[:, : 2 * hidden]), 2, axis=1)
        if reset_after:
            candidate = reset * from_h[:, 2 * hidden :]
        else:
            candidate = (reset * h) @ w_hh[2 * hidden :].T + b_hh[2 * hidden :]
        h = (1 - update) * jnp.tanh(from_x[:, 2 * hidden :] + candidate) + update * h
        return h, h

    hn, y = jax.lax.scan(step, h0[0], x)
    return y, hn[None]


def recurrent(out):
    steps, batch, inputs, hidden = 6, 4, 5, 3

    def parameters(count, gates):
        shapes = ((gates * hidden, inputs), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,))
        return [tuple(draw(*shape, low=-37, high=37) for shape in shapes) for _ in range(count)]

    def fields_of(weights, gradients):
        names = ("w_ih", "w_hh", "b_ih", "b_hh")
        fields = {f"{name}.{i}": part[n] for i, part in enumerate(weights) for n, name in enumerate(names)}
        fields.update({f"d{name}.{i}": part[n] for i, part in enumerate(gradients) for n, name in enumerate(names)})
        return fields

    for directions in (1, 2):
        for lengths in ([steps] * batch, [6, 2, 5, 1]):
            weights = parameters(directions, 4)
            x = draw(steps, batch, inputs)
            h0, c0 = draw(directions, batch, hidden), draw(directions, batch, hidden)
            seen = (jnp.arange(steps)[:, None] < jnp.array(lengths)[None, :])[:, :, None]
            dy = jnp.where(seen, draw(steps, batch, directions * hidden), 0)
            dhn, dcn = draw(directions, batch, hidden), draw(directions, batch, hidden)

            def lstm(x, h0, c0, weights):
                part = [dict(enumerate(column)) for column in zip(*weights)]
                y, hn, cn = rnn.lstm_ref(
                    x.transpose(1, 0, 2), h0, c0, *part, jnp.array(lengths, dtype=jnp.int32), inputs, hidden, 1, 0.0,
                    directions == 2
                )
                return jnp.where(seen, y.transpose(1, 0, 2), 0), hn, cn

            (y, hn, cn), gradients = pulled_back(lstm, (x, h0, c0, weights), (dy, dhn, dcn))
            dx, dh0, dc0, dweights = gradients
            shorter = {} if min(lengths) == steps else dict(lengths=jnp.array(lengths))
            out.case(
                f"recurrent lstm {directions}{' lengths' if shorter else ''}", directions=directions, layers=1, hidden=hidden, x=x, h0=h0, c0=c0, dy=dy, dhn=dhn, dcn=dcn, y=y, hn=hn, cn=cn, dx=dx, dh0=dh0, dc0=dc0,
                **shorter, **fields_of(weights, dweights),
            )
    for reset_after in (True, False):
        weights = parameters(1, 3)
        x, h0 = draw(steps, batch, inputs), draw(1, batch, hidden)
        dy, dhn = draw(steps, batch, hidden), draw(1, batch, hidden)
        (y, hn), gradients = pulled_back(
            lambda x, h0, weights: gru(x, h0, *weights[0], reset_after), (x, h0, weights), (dy, dhn)
        )
        dx, dh0, dweights = gradients
        out.case(
            f"recurrent gru{'' if reset_after else '_reset_before'} scan", directions=1, layers=1, hidden=hidden, x=x, h0=h0, dy=dy, dhn=dhn, y=y,
            hn=hn, dx=dx, dh0=dh0, **fields_of(weights, dweights),
        )


if __name__ == "__main__":
    vectors.write("jax", {f.__name__: f for f in (softmax, pointwise, loss, attention, recurrent)})
