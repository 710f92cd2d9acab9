from diffeqformer.report.figures import perplexity_scale as perplexity_scale
