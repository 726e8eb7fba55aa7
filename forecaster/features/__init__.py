"""What the models look at: levels, changes, peers and histories of every GPU, made alike for training and scoring."""
