"""Pictures of a judgement."""
