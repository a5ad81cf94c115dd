"""Check reproduction.md against results/: every number and verdict of our results is recomputed.

    python docs/check_reproduction.py           # list what differs; the status is 1 if anything does
    python docs/check_reproduction.py --write   # write the table and the figure of the claims over models anew, too

`facts` are fragments of reproduction.md with numbers computed from results/*/results.csv.gz (and, for the weight changes
S1 and S2, from claims.csv). Each must occur on the page. A number of the page that is in no fact must be in `STATED`:
settings, run times and published numbers, which the results do not have.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import numpy as np

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent / "results")]

from recompute import subjects  # noqa: E402
from reproduction_bert import small_bert  # noqa: E402
from reproduction_gte import small_encoder  # noqa: E402
from reproduction_mpnet import recipes, sentence_encoder  # noqa: E402
from reproduction_reasons import by_agreement, not_run, reasons  # noqa: E402
from reproduction_smollm2 import decoder  # noqa: E402
from reproduction_words import word_probing  # noqa: E402

from whichlayers.plots.claims_grid import draw_claims_grid  # noqa: E402
from whichlayers.plots.figures import save_as  # noqa: E402
from whichlayers.report.subject_claims import subjects_grid_markdown  # noqa: E402
from whichlayers.text import join_list  # noqa: E402

STATED = (  # settings, run times, single trials outside results/, and what the papers print
    "Tamkin et al. 2020", "Singh and Giovanardi 2020", "Durrani et al. 2021", "H200", "all-mpnet-base-v2", "SST-2",
    "CoNLL-2000", "(../results/", "12 x 768", "12 x 512", "215 million tokens", "float32", "float16", "bfloat16",
    "values 38 times smaller", "2.667 standard errors", "batches of 64, at most 40 epochs",
    "12,096 of its 104,743 training examples", "500 (50 trials), 5k (3), 50k (3)", 
    "learning rate 2e-5 with linear decay to 0", "batch size 8, gradients clipped at 1; five epochs at 500 examples, three at 5,000",
    "stacks of up to 52 trials", "95% interval", "50,000 examples", "50k", "5k", "Figure 3",
    "1,890 trial-steps/s (SST-2, 5,000 examples)", "(6,656 neurons)", "(9,984)", "(204,577 training words)",
    "CoNLL-2000 (211,727)", "PMB 4.0.0 English gold (50,408)", "SST-2 (10,000 examples)", "QNLI (12,096)", "L1", "L2",
    "L1 = 0.01, which costs 14 points of accuracy", "L1 = L2 = 1e-4", "grid search with 192 probes",
    "(Figures 1 and 4)", "(Tables 1, 4, 5 and 7, Figures 2 and 3)", "(Tables 2 and 6)", "(Table 7)", 
    "(10 to 12)", 
    "L2 = 0.01", "T1", "T2", "T3", "T4", "S1", "S2", "S3", "S4", "T8", "D1", "D2",
    "D3", "D4", "k = 0", 
    "| k, pretrained layers kept | 0 | 2 | 3 | 4 | 5 | 6 | 8 | 10 | 12 |", "Layers 3 to 5 on QNLI", "top 6 | bottom 6",
    "| k, pretrained layers kept | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10 | 11 | 12 |",
    "batches of 8 at the paper's learning rate", "104,532 training examples", "in stacks of 13, five processes", "(T4, Figure 4)",
    "12 x 384", "| k, pretrained layers kept | 0 | 3 | 6 | 9 | 12 |", "5,000 for the probes", "layers 7 to 12", "k = 6",
    "reaches 90% of the score (L1)", "| layers dropped | 1 | 2 | 3 | 4 | 6 | 9 |", "costs about 2%", "P1 cannot be decided", "gte-small and SmolLM2-135M-Instruct: 500 (3)",
    "SmolLM2-135M-Instruct", "smollm2-135m-instruct", "30 x 576", "4-bit file", "first 40,000 words",
    "| k, pretrained layers kept | 0 | 8 | 15 | 22 | 30 |", "From layer 12 on its hidden state has a norm of 23,000, that of other tokens one of 150 (150 sentences)",
    "learn more from 500 examples here", "the gain comes from layers 3 to 5",
    "ten permutations", "at 500 examples", "at 5,000 examples", "with 500 examples", "With 500 examples",
    "with 5,000", "With 5,000 examples of QNLI", "500, where the paper", "CoLA with 5 trials",
    "layers 3 to 5 alone, with the other nine re-initialized", "finetuned on 500 examples",
)  # fmt: skip


BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def blocks() -> dict[str, str]:
    """Parts of the page that are generated as a whole, by name."""
    found = by_agreement()
    lines = {
        "What holds wherever it could be decided": found["holding"],
        "What fails nowhere, but is below the margin somewhere": found["small"],
        "What fails wherever it could be decided": found["failing"],
        "What depends on model, task or size": found["mixed"],
    }
    listed = [f"- **{text}**: {join_list(claims) or 'none'}." for text, claims in lines.items()]
    return {"claims": subjects_grid_markdown(subjects()), "agreement": "\n".join(listed) + "\n"}


def with_blocks(page: str) -> str:
    """The page with its generated parts written anew."""
    # blank lines, because Markdown does not see a table or a list right after a comment everywhere
    return BLOCK.sub(lambda found: f"{found[1]}\n{blocks()[found[2]]}\n{found[3]}", page)


@cache
def facts() -> tuple[str, ...]:
    """All fragments that the page must have."""
    sections = (sentence_encoder, recipes, small_bert, small_encoder, decoder, word_probing, reasons, not_run)
    return tuple(fact for section in sections for fact in section())


def problems(page: str) -> list[str]:
    """Facts that are not on the page, and numbers of the page that are no facts."""
    found = [] if with_blocks(page) == page else ["the generated parts are not up to date: run with --write"]
    page = re.sub(r"```.*?```|!\[.*?\]\(.*?\)", "", BLOCK.sub("", page), flags=re.DOTALL)
    covered = np.zeros(len(page), dtype=bool)
    for fact in facts():
        places = [m.start() for m in re.finditer(re.escape(fact), page)]
        if not places:
            found.append(f"not on the page: {fact}")
        for place in places:
            covered[place : place + len(fact)] = True
    for text in STATED:
        for match in re.finditer(re.escape(text), page):
            covered[match.start() : match.end()] = True
    for match in re.finditer(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?", page):
        if not covered[match.start() : match.end()].all():
            around = page[max(0, match.start() - 40) : match.end() + 30].replace("\n", " ")
            found.append(f"not computed: {match[0]} in ...{around}...")
    return found


def main() -> int:
    """Print what is wrong with the page; with --write, write its generated parts and figure anew first."""
    path = DOCS / "reproduction.md"
    if sys.argv[1:] == ["--write"]:
        path.write_text(with_blocks(path.read_text(encoding="utf-8")), encoding="utf-8")
        save_as(draw_claims_grid(subjects()), DOCS / "images" / "claims.png")
    found = problems(path.read_text(encoding="utf-8"))
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
