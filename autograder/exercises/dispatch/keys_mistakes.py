"""What people get wrong about the keys of a call, those first that show in the fewest cases."""

from __future__ import annotations

from autograder.exercise import Mistake
from autograder.exercises.recorded import apart

try:
    import autograder.exercises.dispatch.keys_truth as truth
except ModuleNotFoundError as missing:
    truth = apart(missing)


def _answers(*kinds):
    return {"answer": lambda v, kind: {"keys": kind().met(v["tensors"], v["around"])}, "variants": kinds}


def _asked(e) -> bool:
    return e.raised("module 'torch' has no attribute") or e.raised("ModuleNotFoundError")


MISTAKES = (
    Mistake(
        "asked_the_machine",
        "The rule asks torch, and where it is judged there is none: say in plain Python what the dispatcher does.",
        sign=_asked,
    ),
    Mistake(
        "no_grad_changes_keys",
        "`no_grad` changed the set. It changes what the kernel of Autograd does, and no key.",
        **_answers(truth.NoGradExcludes),
    ),
    Mistake(
        "handler_ends_all_modes",
        "In its handler a mode is off the stack, but the modes around it are still there.",
        **_answers(truth.HandlerEndsModes),
    ),
    Mistake(
        "autocast_includes",
        "Autocast adds no key: it stops excluding one that tensors on the CPU carry. Without such a tensor there is "
        "nothing to run.",
        **_answers(truth.AutocastIncludes),
    ),
    Mistake(
        "views_of_inference_tensors_are_new",
        "A view of an inference tensor was taken for a new tensor: it shares its keys, as it shares its memory.",
        **_answers(truth.ViewsAreNew),
    ),
    Mistake(
        "copies_stay_inference_tensors",
        "What is made from an inference tensor outside of inference mode, a clone or a wrapper, is a new tensor and "
        "carries Autograd's keys.",
        **_answers(truth.ClonesStay, truth.WrappersStay, truth.AllStay),
    ),
    Mistake(
        "order_of_contexts_lost",
        "Of two contexts that contradict each other the inner one has the last word, whichever it is.",
        **_answers(truth.EndsWin),
    ),
    Mistake(
        "inference_tensors_alike",
        "A tensor that was made in inference mode lacks AutogradCPU and ADInplaceOrView, also outside of the mode.",
        **_answers(truth.InferenceTensorsAlike),
    ),
    Mistake(
        "inference_mode_excludes_views",
        "In inference mode ADInplaceOrView is no longer included, but it is not excluded either: a tensor from outside "
        "brings it along.",
        **_answers(truth.InferenceModeExcludesBoth),
    ),
    Mistake(
        "inference_mode_includes_views",
        "Inference mode does two things: it excludes Autograd, and it ends that the thread includes ADInplaceOrView.",
        **_answers(truth.InferenceModeKeepsViews),
    ),
    Mistake(
        "views_not_included",
        "ADInplaceOrView was taken from the tensors alone: outside of inference mode the thread includes it always.",
        **_answers(truth.ViewsOfTensorsOnly),
    ),
    Mistake(
        "autocast_forgotten",
        "In autocast the key AutocastCPU is missing.",
        **_answers(truth.AutocastNever),
    ),
    Mistake(
        "handler_in_its_own_mode",
        "In its handler a mode is off the stack: otherwise it would call itself for ever.",
        **_answers(truth.HandlerInItsMode),
    ),
    Mistake(
        "autocast_below_autograd",
        "Autocast is above Autograd: the conversions that it makes are part of what is differentiated.",
        **_answers(
            truth.moved("Autocast", "ADInplaceOrView"),
            truth.moved("Autocast", "Python"),
            truth.moved("Autocast", "BackendSelect"),
        ),
    ),
    Mistake(
        "mode_ignored",
        "A TorchDispatchMode on the stack adds Python to every call, whatever the tensors are.",
        **_answers(truth.ModeIgnored),
    ),
    Mistake(
        "ends_ignored",
        "`autocast(enabled=False)` takes back what an outer autocast did.",
        **_answers(truth.EndsIgnored),
    ),
    Mistake(
        "wrapper_ignored",
        "A tensor whose class has a `__torch_dispatch__` carries Python.",
        **_answers(truth.WrapperIgnored),
    ),
    Mistake(
        "only_the_wrapping",
        "A wrapper also carries the keys of its backend and of Autograd.",
        **_answers(truth.WrapperOnly),
    ),
    Mistake(
        "snapshot_forgotten",
        "Python comes with a second key, PythonTLSSnapshot, high above: it notes the state of the thread for later.",
        **_answers(truth.WithoutSnapshot),
    ),
    Mistake(
        "python_on_top",
        "Python is below Autograd: a mode or a wrapper sees what autograd has left.",
        **_answers(
            truth.moved("Python", "Autocast"),
            truth.moved("Python", "PythonTLSSnapshot"),
            truth.moved("Python", "Autograd"),
        ),
    ),
    Mistake(
        "inference_mode_ignored",
        "Inference mode is a state of the thread too: inside, Autograd's key is excluded, whatever the tensors carry.",
        **_answers(truth.InferenceModeIgnored),
    ),
    Mistake(
        "a_key_of_each_backend",
        "With tensors of two backends, a kind got both, or that of the tensor which brought it. Kinds and backends are "
        "kept apart: the highest backend of all tensors stands for every kind.",
        **_answers(truth.BothBackends, truth.BackendOfEachKind),
    ),
    Mistake(
        "lower_backend_wins",
        "With tensors of two backends the lower one was taken: Meta is above CPU, and so is CUDA.",
        **_answers(truth.LowerBackend),
    ),
    Mistake(
        "handler_ignored",
        "In a handler everything above Python is excluded: Autograd and autocast are done.",
        **_answers(truth.HandlerIgnored),
    ),
    Mistake(
        "exclude_before_include",
        "What the thread includes was added after the exclusion: exclude has the last word.",
        **_answers(truth.ExcludeFirst),
    ),
    Mistake(
        "first_tensor_only",
        "The set was not made from all tensors: it is the union.",
        **_answers(truth.FirstTensorOnly, truth.CommonOnly),
    ),
    Mistake(
        "only_where_gradients_are_required",
        "Autograd's key was left out where no tensor requires a gradient. Every tensor carries it that was not made "
        "in inference mode: the kernel of Autograd looks at requires_grad, the dispatcher does not.",
        **_answers(truth.OnlyWhereRequired),
    ),
    Mistake(
        "autocast_never_excluded",
        "AutocastCPU is in the set of every tensor on the CPU, and excluded where autocast is not switched on.",
        **_answers(truth.AutocastAlways),
    ),
    Mistake(
        "backend_select_forgotten",
        "BackendSelect is missing: every thread includes it, for calls that bring no tensor.",
        **_answers(truth.Unincluded),
    ),
    Mistake(
        "lowest_first",
        "The list begins with the key whose kernel runs first.",
        **_answers(truth.LowestFirst),
    ),
)
