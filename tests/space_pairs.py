"""Pairs of observation and action spaces, by what is special about them."""

from collections import OrderedDict

import gymnasium as gym
import numpy as np

S = gym.spaces
INF = np.inf
VECTOR = S.Box(-1.0, 1.0, (3,), np.float32)
TWO = S.Box(-2.0, 2.0, (2,), np.float32)
NESTED = S.Dict(
    OrderedDict(
        z=S.Tuple([S.Discrete(3, start=-1), VECTOR]),
        a=S.Dict(image=S.Box(0, 255, (2, 2), np.uint8), bits=S.MultiBinary(2)),
    )
)
ACTIONS = S.Dict(
    OrderedDict(
        z=S.Box(0, 5, (2,), np.float64),
        a=S.Tuple([S.Discrete(3, start=1), S.MultiDiscrete([2, 3]), S.Box(-3, 3, (1,), np.int8)]),
    )
)
PAIRS = {
    # Box observations; every pair has an action that no other has.
    "vector, choice": (VECTOR, S.Discrete(3)),
    "number, choice from 2": (S.Box(-1, 1, ()), S.Discrete(3, start=2)),
    "one number, one choice": (S.Box(-1, 1, (1,)), S.Discrete(1)),
    "one row, choice from -4": (S.Box(-1, 1, (1, 3)), S.Discrete(5, start=-4)),
    "cube, choices": (S.Box(-1, 1, (2, 1, 2)), S.MultiDiscrete([2, 3])),
    "unbounded, choices from anywhere": (
        S.Box(-INF, INF, (3,)),
        S.MultiDiscrete([2, 4], start=[-3, 7]),
    ),
    "bounded below, table of choices": (
        S.Box(0, INF, (3,)),
        S.MultiDiscrete([[2, 3], [4, 1]], start=[[0, 1], [-1, 5]]),
    ),
    "bounded above, int32 choices": (S.Box(-INF, 0, (3,)), S.MultiDiscrete([3, 3], np.int32)),
    "mixed bounds, one of choices": (
        S.Box(np.float32([0, -INF, -INF, 2]), np.float32([1, INF, 5, INF])),
        S.MultiDiscrete([4]),
    ),
    "one value, bits": (S.Box(2, 2, (2,)), S.MultiBinary(3)),
    "float16, table of bits": (S.Box(-1, 1, (3,), np.float16), S.MultiBinary([2, 2])),
    "float64, vector": (S.Box(-1, 1, (3,), np.float64), TWO),
    "unbounded float64, number": (S.Box(-INF, INF, (3,), np.float64), S.Box(-1, 3, ())),
    "int8, one number": (S.Box(-128, 127, (3,), np.int8), S.Box(-1, 3, (1,))),
    "int16, table": (S.Box(-4, 4, (2, 2), np.int16), S.Box(0, 1, (2, 2))),
    "int32, unbounded": (S.Box(-5, 9, (3,), np.int32), S.Box(-INF, INF, (2,))),
    "int64, bounded below": (S.Box(-(2**40), 2**40, (2,), np.int64), S.Box(3, INF, (2,))),
    "unbounded int64, bounded above": (S.Box(-INF, INF, (2,), np.int64), S.Box(-INF, -1, (2,))),
    "uint16, mixed bounds": (
        S.Box(0, 1000, (2,), np.uint16),
        S.Box(np.float32([-2, 0, -INF, -INF]), np.float32([6, INF, 0.1, INF])),
    ),
    "uint32, one value": (S.Box(0, 2**32 - 1, (2,), np.uint32), S.Box(2, 2, (2,))),
    "uint64, huge": (S.Box(0, 2**62, (2,), np.uint64), S.Box(-3e38, 3e38, (2,))),
    "narrow uint8, tiny": (S.Box(3, 7, (2,), np.uint8), S.Box(-1e-6, 1e-6, (2,))),
    "truths, float64": (S.Box(0, 1, (3,), np.bool_), S.Box(-1, 3, (2,), np.float64)),
    "bytes, unbounded float64": (S.Box(0, 255, (5,), np.uint8), S.Box(-INF, INF, (2,), np.float64)),
    "small image, float16": (S.Box(0, 255, (3, 3, 1), np.uint8), S.Box(-1, 3, (2,), np.float16)),
    "image, unbounded float16": (
        S.Box(0, 255, (8, 8, 3), np.uint8),
        S.Box(-INF, INF, (2,), np.float16),
        {"conv_filters": [[2, 4, 2], [3, 4, 1]]},
    ),
    # Choices and bits as observations.
    "discrete, int32": (S.Discrete(4), S.Box(-2, 5, (2,), np.int32)),
    "discrete from -2, int8": (S.Discrete(5, start=-2), S.Box(-128, 127, (1,), np.int8)),
    "one discrete value, integer": (S.Discrete(1, start=3), S.Box(0, 3, (), np.int64)),
    "digits, bytes": (S.MultiDiscrete([2, 3]), S.Box(0, 255, (2,), np.uint8)),
    "digits from anywhere, one integer each": (
        S.MultiDiscrete([[2, 3], [3, 3]], start=[[1, 0], [-2, 4]]),
        S.Box(np.int16([0, 7]), np.int16([0, 9]), dtype=np.int16),
    ),
    "bits, truths": (S.MultiBinary(3), S.Box(0, 1, (3,), np.bool_)),
    "table of bits, truth": (S.MultiBinary([2, 3]), S.Box(0, 1, (), np.bool_)),
    # Nested on one side or on both.
    "dict, tuple of one": (S.Dict(b=VECTOR, a=S.Discrete(2)), S.Tuple([S.Discrete(2, start=1)])),
    "tuple, dict of one": (S.Tuple([VECTOR, S.MultiBinary(2)]), S.Dict(only=TWO)),
    "dict of dict, tuple": (
        S.Dict(a=S.Dict(b=S.Dict(c=VECTOR))),
        S.Tuple([TWO, S.Discrete(3), S.MultiBinary(2)]),
    ),
    "nested, nested": (NESTED, ACTIONS),
    "tuple of tuples, dict of dicts": (
        S.Tuple([S.Tuple([S.Tuple([S.Discrete(2)]), VECTOR])]),
        S.Dict(a=S.Dict(b=S.Box(-1, 1, ()), c=S.Dict(d=S.Box(0, INF, (1, 2))))),
    ),
    "strange keys, strange keys": (
        S.Dict(
            {"joint pos": VECTOR, "a/b": S.Discrete(2), "a_b": S.Discrete(3), "é": S.MultiBinary(1)}
        ),
        S.Dict({"wheel-left": TWO, "wheel left": S.Discrete(2), "class": S.Discrete(2)}),
    ),
    "integer keys, integer keys": (
        S.Dict({1: VECTOR, 0: S.Discrete(2)}),
        S.Dict({2: S.Discrete(2), 10: S.MultiDiscrete([2, 2])}),
    ),
    "all dtypes, all families": (
        S.Dict({kind: S.Box(0, 1, (2,), kind) for kind in ("f2", "f4", "f8", "i1", "u1", "?")}),
        S.Tuple(
            [S.Discrete(2), S.MultiDiscrete([2]), S.MultiBinary(1), S.Box(0, 1, (1,), np.uint8),
             S.Box(-1, 1, (1,), np.float16), S.Box(-1, 1, (1,), np.float64),
             S.Box(0, 1, (1,), np.bool_)]
        ),
    ),
    "something empty, tuple of tuples": (
        S.Dict(nothing=S.Box(-1, 1, (0,)), something=VECTOR),
        S.Tuple([S.Tuple([S.Tuple([S.Discrete(2)]), S.Tuple([TWO])]), S.MultiBinary(1)]),
    ),
    "image and vector, box and choice": (
        S.Dict(camera=S.Box(0, 255, (8, 8, 3), np.uint8), speed=S.Box(-INF, INF, ())),
        S.Dict(steer=S.Box(-1, 1, ()), gear=S.Discrete(5, start=-1)),
        {"conv_filters": [[2, 4, 2], [3, 4, 1]]},
    ),
}  # fmt: skip
