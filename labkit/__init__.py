"""What the phases share and a learner need not read: reports, figures, finding models, the `lab` command."""
