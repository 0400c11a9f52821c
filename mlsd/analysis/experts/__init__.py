"""Whether verification amortizes on a mixture of experts."""
