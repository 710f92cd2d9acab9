"""What can be trained anew to be checked: one file an experiment, each as the verbs are."""

EXPERIMENTS = {
    "adapt": "the paper's figure 5: pretrain on one text, fine-tune on another, at several depths",
    "elastic": "one checkpoint for every depth, beside models trained at one depth each with the same compute",
}
