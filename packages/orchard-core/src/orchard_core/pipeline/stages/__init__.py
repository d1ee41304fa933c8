"""The stages that a recipe may list; each module has an async `run(context, stage)`."""
