"""How a page answers: a service's refusal becomes a message, and a form goes back where it came from."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect

from webapp.refusals import Refused

View = Callable[..., HttpResponse]


def refusals_return_to(target: Callable[..., str]) -> Callable[[View], View]:
    """A POST that a service refuses says why on the page ``target(request, ...)`` instead of failing."""

    def decorate(view: View) -> View:
        @wraps(view)
        def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            try:
                return view(request, *args, **kwargs)
            except Refused as refusal:
                show_refusal(request, refusal)
                return redirect(target(*args, **kwargs))

        return answer

    return decorate


def show_refusal(request: HttpRequest, refusal: Refused) -> None:
    for text in [f"{problem.message}; {problem.remedy}" for problem in refusal.problems] or [refusal.title]:
        messages.error(request, text[:1].upper() + text[1:] + ".")


def redirect_with(request: HttpRequest, text: str, to: str) -> HttpResponseRedirect:
    messages.success(request, text)
    return HttpResponseRedirect(to)
