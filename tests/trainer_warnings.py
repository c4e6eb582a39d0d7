"""What trainers warn of that is no matter of ours; anything else that warns fails a test."""

IGNORED = [
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning:lightning",
    "ignore:.*does not have many workers:UserWarning:lightning",
    "ignore:You defined a `validation_step` but have no `val_dataloader`:UserWarning:lightning",
    "ignore:Be aware that when using `ckpt_path`:UserWarning:lightning",
    "ignore::DeprecationWarning:ray",
]
