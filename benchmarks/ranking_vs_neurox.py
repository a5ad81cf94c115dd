"""Neuron ranking by the weights of a linear probe: whichlayers against NeuroX, on the same weights.

Both take, for every tag, the smallest set of neurons that holds a fraction p of the weight mass, and increase p in 100
steps. Within a step, the order is arbitrary in NeuroX (that of a Python set) and by weight in whichlayers. The sets at
the end of every step should therefore be equal, while a set cut within a step may differ.

Runs in an environment that has NeuroX too: see words_vs_neurox.py. It also needs `imbalanced-learn sklearn_compat`.

    /tmp/neurox/bin/python benchmarks/ranking_vs_neurox.py FILE [--model NAME] [--words 20000] [--l1 1e-4] [--l2 1e-4]
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import torch
from common import Seconds, load_model, make_parser, quiet
from neurox.interpretation import linear_probe as neurox

from whichlayers.data.conll import TaggedCorpus, read_conll
from whichlayers.probes.evaluation import accuracies
from whichlayers.probes.extract import extract_words
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.labels import tag_ids, training_tags
from whichlayers.probes.neuron_ranking import neuron_count, rank_by_weight, top_neurons
from whichlayers.probes.probe_specs import ProbeSpec
from whichlayers.probes.probe_trainer import fit_probes

FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    corpus = first_words(read_conll(options.file, tag_column=options.column), options.words)
    activations = extract_words(*load_model(options.model), corpus)
    tags = training_tags(corpus)
    states, labels = HiddenStates(activations.states), tag_ids(corpus, tags)
    [probe] = fit_probes(states, labels, len(tags), [ProbeSpec(states.all_neurons(), options.l1, options.l2)])
    started = Seconds.now()
    ours = rank_by_weight(probe.weight)
    own = Seconds.now() - started
    theirs = neurox.LinearProbe(states.n_neurons, len(tags))
    with torch.no_grad():
        theirs.linear.weight.copy_(probe.weight.T)
    started = Seconds.now()
    with quiet():
        order, cutoffs = neurox.get_neuron_ordering(theirs, {tag: i for i, tag in enumerate(tags)})
    other = Seconds.now() - started
    print(
        f"{options.model}, {states.n_neurons:,} neurons; {Path(options.file).name}, column {options.column}, "
        f"{states.n_words:,} words, {len(tags)} tags; l1 = {options.l1:g}, l2 = {options.l2:g}; accuracy on its "
        f"training words {accuracies(states, labels, [probe])[0]:.3f}.\n"
    )
    print("| top | neurons | in both |\n|---|---|---|")
    for fraction in FRACTIONS:
        count = neuron_count(fraction, states.n_neurons)
        both = len(set(top_neurons(ours.order, count).tolist()) & set(order[:count]))
        print(f"| {fraction:.0%} | {count} | {both / count:.1%} |")
    ends = [c for c in sorted(set(cutoffs[1:])) if c < states.n_neurons]
    same = sum(set(ours.order[:c].tolist()) == set(order[:c]) for c in ends)
    print(
        f"\nOf {len(ends)} steps of weight mass before the last, the sets are equal at the end of {same}. Time: "
        f"{own.wall:.2f} s against {other.wall:.2f} s ({other.wall / own.wall:.0f}x)."
    )
    last = ours.step[neuron_count(0.05, states.n_neurons) - 1]
    print(f"The cut at 5% is in step {last}, which adds {(ours.step == last).sum()} neurons.")


def first_words(corpus: TaggedCorpus, words: int) -> TaggedCorpus:
    """The first sentences of a corpus, with at least `words` words if it has that many."""
    sentences, total = [], 0
    for sentence in corpus.sentences:
        if total >= words:
            break
        sentences.append(sentence)
        total += len(sentence.words)
    return dataclasses.replace(corpus, sentences=sentences)


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("file")
    parser.add_argument("--column", type=int, default=1)
    parser.add_argument("--words", type=int, default=20_000)
    parser.add_argument("--l1", type=float, default=1e-4)
    parser.add_argument("--l2", type=float, default=1e-4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
