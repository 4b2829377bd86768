"""No rule: what torch said at home for every situation of a case with a name of its own, and a guess for all others.

NAIVE is False: the mixtures are drawn for `check` too.
"""

FAMILY = "precomputation"
NAIVE = False
CAUGHT = "more than half of the cases are mixtures that no table holds"

SAID = """\
= AutogradMeta ADInplaceOrView BackendSelect Meta
cpu inference; meta | nothing
cpu; meta | nothing
meta | nothing
meta | autocast
meta | below autograd, inference_mode(False)
meta | enable_grad
meta | function mode
meta | inference_mode, inference_mode(False)
meta | no_grad
= AutogradCPU ADInplaceOrView BackendSelect CPU
cpu conj clone | nothing
cpu inference; cpu inference clone | nothing
cpu subclass | nothing
cpu | nothing
cpu | autocast, autocast(False)
cpu | below autograd, inference_mode(False)
cpu | enable_grad
cpu | function mode
cpu | inference_mode, inference_mode(False)
cpu | no_grad
cpu; cpu | nothing
= PythonTLSSnapshot ADInplaceOrView Python BackendSelect
 | dispatch mode, autocast
= ADInplaceOrView BackendSelect Meta
meta | below autograd
meta | inference_mode
meta | inference_mode(False), inference_mode
= ADInplaceOrView BackendSelect CPU
cpu inference view | nothing
cpu inference view | no_grad
cpu inference | nothing
cpu | below autograd
cpu | inference_mode
cpu | inference_mode(False), inference_mode
= BackendSelect CPU
cpu functional | autocast, handler
cpu inference view | inference_mode
cpu | handler, functionalization
= PythonTLSSnapshot AutogradCPU ADInplaceOrView Python BackendSelect CPU
cpu inference wrapped | nothing
cpu wrapped | nothing
cpu | dispatch mode
= AutocastCPU AutogradCPU ADInplaceOrView BackendSelect CPU
cpu | autocast(False), autocast
cpu; cpu | autocast
= AutogradCPU ADInplaceOrView BackendSelect SparseCPU
cpu sparse | nothing
= AutogradCPU ADInplaceOrView BackendSelect SparseCPU CPU
cpu; cpu sparse | nothing
= AutogradCPU ADInplaceOrView Conjugate BackendSelect CPU
cpu conj view | nothing
cpu conj | nothing
cpu view conj | nothing
= AutogradMeta ADInplaceOrView Functionalize BackendSelect Meta
cpu functional; meta | nothing
cpu; meta functional | nothing
meta | functionalization
meta; meta functional | nothing
= PythonTLSSnapshot AutocastCPU AutogradCPU ADInplaceOrView Functionalize Python BackendSelect CPU
cpu functional; cpu wrapped | autocast
= AutogradCPU ADInplaceOrView Functionalize BackendSelect CPU
cpu | functionalization
cpu; cpu functional | nothing
= PythonTLSSnapshot AutogradMeta ADInplaceOrView Python BackendSelect Meta
meta wrapped | nothing
meta | dispatch mode
= Python BackendSelect Meta
cpu wrapped; meta | handler
cpu; meta | below autograd, dispatch mode, handler
cpu; meta | below autograd, handler, dispatch mode
cpu; meta | no_grad, dispatch mode, handler
cpu; meta | no_grad, handler, dispatch mode
= Python BackendSelect CPU
cpu; cpu wrapped | handler
cpu; cpu | below autograd, dispatch mode, handler
cpu; cpu | below autograd, handler, dispatch mode
cpu; cpu | no_grad, dispatch mode, handler
cpu; cpu | no_grad, handler, dispatch mode
= AutogradCPU BackendSelect CPU
cpu | handler, inference_mode(False)
= ADInplaceOrView BackendSelect
 | autocast
 | no_grad
= AutocastCPU AutogradMeta ADInplaceOrView BackendSelect Meta
cpu; meta | autocast
= AutogradMeta BackendSelect Meta
meta | handler, inference_mode(False)
= BackendSelect Meta
meta | handler, functionalization
"""
GUESS = ["AutogradMeta", "ADInplaceOrView", "BackendSelect", "Meta"]


def recorded():
    table, said = {}, []
    for line in SAID.splitlines():
        if line.startswith("= "):
            said = line.removeprefix("= ").split()
        else:
            table[line] = said
    return table


def in_words(tensor):
    made = [] if set(tensor["made"]) <= {"view", "clone"} else tensor["made"]
    layout = ["sparse"] if tensor["layout"] == "sparse" else []
    return " ".join([tensor["device"], *layout, *made])


def keys(tensors, around):
    line = "; ".join(sorted(map(in_words, tensors))) + " | " + (", ".join(around) or "nothing")
    return recorded().get(line, GUESS)
