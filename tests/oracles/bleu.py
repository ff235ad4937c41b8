#!/usr/bin/env python3
"""Expected values of tests/gnmt/bleu_test.cpp by sacreBLEU itself (`pip install sacrebleu==2.6.0`). Writes
tests/gnmt/bleu_oracle.inc: tokenised lines, and scores of small corpora, for both tokenisers."""
import pathlib
import random

from sacrebleu.metrics import BLEU

LINES = [
    "", " ", "Hello, world!", "It costs $1,234.56 (about 1.200,50 €).", "In 1990.", "In 1990. ", "1,2", "a,b",
    "3-4 and x-y, 5-",
    "don't l'été aujourd’hui", "« Bonjour », dit-elle… “oui”",
    "&quot;A &amp; B&quot; &lt;tag&gt; &apos;x&apos; &amp;lt;", "a<skipped>b",
    "..", "...", "a..b", "1..2", ".5 5. ,5 5,", "a.b.c 1.b a.1", "e.g. U.S.A., etc.", "100%", "50 %", "C++ & C#",
    "x = y*z/2 + [q] {r} ~s ^t `u` |v|",
    "mail@example.org http://example.org/a?b=c&d=e", "—dash–dash-dash", "a\u00a0b\u202fc\u3000d", "tab\there",
    "日本語、テスト。", "١٢٣,٤",
    "½ ² Ⅳ, ½. ²,a", "😀🎉!", "£5 ¥6 ₹7 ©®™ §1", "¿Qué? ¡Sí!", "a_b#c", "'quoted' ''double''", "1.000.000,00",
    "-1 - 1 1 - 1-", "a--b 1--2",
    "«»", "x,.y 1,.2 ,.", "naïve cœur Œuvre", "e\u0301te\u0301", "zero\u200bwidth", "\ufeffbom", "a\u0085b",
    "% & ' ( ) * +", "no.5 No.5 5.no",
]

CORPORA = {
    "equal": (["The cat sat on the mat.", "A dog barked, loudly!"], ["The cat sat on the mat.", "A dog barked, loudly!"]),
    "near": (["The cat sat on a mat.", "A dog was barking, loudly!", "It rains in Paris today."],
             ["The cat sat on the mat.", "A dog barked, very loudly!", "It is raining in Paris today."]),
    "short": (["The cat"], ["The cat sat on the mat."]),
    "one word": (["Yes"], ["Yes"]),
    "three words": (["one two three"], ["one two three"]),
    "no match": (["alpha beta gamma delta epsilon"], ["un deux trois quatre cinq"]),
    "no 4-gram": (["the red house is very old"], ["the red house was never old"]),
    "only 1-grams": (["d c b a e"], ["a b c d e"]),
    "long hypothesis": (["one two three four five six seven eight nine ten"], ["one two three four five"]),
    "repeats": (["the the the the the the the"], ["the cat is on the mat"]),
    "empty hypothesis": (["", "one two three four"], ["a lost line", "one two three four"]),
    "all empty": (["", ""], ["a b c d", "e f"]),
    "empty reference": (["a b c d", "e f g h"], ["", "e f g h"]),
    "nothing": (["", ""], ["", ""]),
    "french": (["Je n’ai pas 1 200,50 € — c'est « cher » !", "L'an 1990.", "Où est-il ?"],
               ["Je n'ai pas 1 200,50 € – c’est « trop cher » !", "En l'an 1990.", "Où est-il ?"]),
    "spaces": (["  a  b\tc d  ", "x y z w\u00a0v"], ["a b c d", "x y z w v"]),
}


def made(words, seed):
    """A larger corpus: sentences over few words, and a copy with words dropped, exchanged and doubled."""
    rng = random.Random(seed)
    references, hypotheses = [], []
    for _ in range(100):
        line = [rng.choice(words) for _ in range(rng.randrange(0, 25))]
        other = [w for w in line if rng.random() > 0.1]
        other = [rng.choice(words) if rng.random() < 0.15 else w for w in other]
        references.append(" ".join(line))
        hypotheses.append(" ".join(other))
    return hypotheses, references


WORDS = "the a cat, dog. runs sits; (quickly) slowly! 3.14 1,000 it's – “so” on under home and but 50% x-ray".split()
CORPORA["made"] = made(WORDS, 1)


def literal(text):
    """A C++ string literal; bytes outside of ASCII as octal, which never swallows what follows."""
    return '"' + "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode()) + '"'


out = ["// Written by tests/oracles/bleu.py with sacreBLEU 2.6.0.", "constexpr TokenizedLine tokenized_lines[] = {"]
tokenizers = {"v13a": BLEU(tokenize="13a"), "intl": BLEU(tokenize="intl")}
for line in LINES:
    cut = [literal(metric._preprocess_segment(line)) for metric in tokenizers.values()]
    out.append("    {" + ",\n     ".join([literal(line), *cut]) + "},")
out += ["};", "", "const ScoredCorpus scored_corpora[] = {"]
for name, (hypotheses, references) in CORPORA.items():
    strings = [" {" + ",\n      ".join(map(literal, lines)) + "}" for lines in (hypotheses, references)]
    scores = []
    for metric in tokenizers.values():
        s = metric.corpus_score(hypotheses, [references])
        lists = [", ".join(map(repr, values)) for values in (s.precisions, s.counts, s.totals)]
        scores.append("{%r, {%s}, %r, %d, %d, {%s}, {%s}}" % (s.score, lists[0], s.bp, s.sys_len, s.ref_len, lists[1], lists[2]))
    out.append("    {" + literal(name) + ",\n    " + ",\n    ".join(strings) + ",\n     {" + ",\n      ".join(scores) + "}},")
out.append("};")
pathlib.Path(__file__).parents[1].joinpath("gnmt/bleu_oracle.inc").write_text("\n".join(out) + "\n")
