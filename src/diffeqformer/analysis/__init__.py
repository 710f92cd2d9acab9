"""Looking inside a model: pure functions of a model and tokens, each in the module of its name.

    spectra      spectra                          eigenvalues of a block's matrix pairs over depth
    induction    measure_induction                prefix matching and copying, beside the spectra
    lyapunov     pairwise                         the paper's sensitivity of one token to another
    end_to_end   end_to_end                       sensitivity through all tokens and all of depth
    exponents    flow_exponents, kaplan_yorke     Lyapunov exponents of any vector field
    attribution  attribute                        attention, gradients, occlusion
    faithfulness explain, faithfulness            all explanations of a prediction; which to trust
    clusters     simulate                         particles that attend to each other
    leaving_out  kept_order                       which layers a trained table can do without
    gathering    watch_states                     clusters and distances of a model's hidden states over depth

A result is a frozen dataclass: `arrays()` gives all of its numbers by name, and a notebook shows it as a table.
"""
