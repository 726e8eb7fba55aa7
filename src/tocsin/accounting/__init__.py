"""Who used which GPU for how long: GPU-seconds and joules by holder and UTC day, kept, priced and judged."""
