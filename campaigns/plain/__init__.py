"""Right runs under the budgets of plain functions, written as a project would write its references."""
