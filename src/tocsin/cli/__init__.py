"""The command line: one file for each group of commands; heavy imports only inside the commands that need them."""
