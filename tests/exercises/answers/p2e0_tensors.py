RIGHT = {"hidden @ table.T": "torch.einsum('nd,vd->nv', hidden.double(), table.double())"}
