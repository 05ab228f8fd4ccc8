"""The nouns: Mesh, Axis, Dim, Tensor, Op, Layout, Plan and what follows from them. All frozen."""
