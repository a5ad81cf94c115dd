"""The study file of the project that hostile inputs are put into."""

STUDY = """name = "mine"
seed = 0
trials = 2
train_sizes = [8]
models = ["./model"]
experiments = ["incremental"]
[[tasks]]
name = "reviews"
train = "train.tsv"
dev = "dev.tsv"
text = "text"
label = "label"
[training]
epochs = 1
max_length = 16
"""
