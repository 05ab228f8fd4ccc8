"""The audited layouts: what each is predicted to move, beside what its program moves when it is traced."""
