"""Images to classes: digits, or CIFAR-10 with pretrained ResNets (Table III of the paper)."""
